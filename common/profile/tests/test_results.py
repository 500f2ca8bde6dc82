"""results.py and peers.py's formulas: statistics by enumeration, FLOPs by counting pairs."""

import itertools
import math
import pathlib
import random
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import results as files


class Statistics(unittest.TestCase):
    def test_bounds_are_the_order_statistics_of_the_sign_test(self):
        self.assertEqual((2, 8), files.bounds_of_median(range(1, 10)))  # 10 of 512 on each side
        self.assertEqual((1, 5), files.bounds_of_median([5, 1, 4, 2, 3]))  # 1 of 32
        self.assertEqual((4, 12), files.bounds_of_median(range(1, 16)))  # 576 of 32768
        with self.assertRaises(ValueError):
            files.bounds_of_median([1, 2, 3, 4])

    def test_rank_probability_is_that_of_all_ways_to_split_the_samples(self):
        for first, second in (([1, 2, 3], [4, 5, 6, 7]), ([1, 5, 6], [2, 3, 4]), ([4, 5], [1, 2, 3]), ([2, 7, 8, 9], [1, 3, 4])):
            values = first + second
            above = lambda chosen: sum(x > y for x in chosen for y in set(values) - set(chosen))
            splits = [above(chosen) for chosen in itertools.combinations(values, len(first))]
            expected = sum(split <= above(first) for split in splits) / len(splits)
            self.assertAlmostEqual(expected, files.probability_of_rank_sum(first, second))

    def test_rank_probability_of_ties(self):
        self.assertGreater(files.probability_of_rank_sum([1.0] * 9, [1.0] * 9), 0.4)
        self.assertAlmostEqual(1 / math.comb(18, 9), files.probability_of_rank_sum([1] * 9, [2] * 9))

    def test_rank_test_is_wrong_as_often_as_it_says(self):
        noise = random.Random(1)
        draws = ([noise.gauss(0, 1) for _ in range(18)] for _ in range(2000))
        rejected = sum(files.probability_of_rank_sum(draw[:9], draw[9:]) < 0.05 for draw in draws)
        self.assertLess(rejected / 2000, 0.06)
        self.assertGreater(rejected / 2000, 0.03)


class Formulas(unittest.TestCase):
    def test_flops_are_those_of_the_visible_pairs(self):
        for mask, (queries, keys) in itertools.product(("none", "causal"), ((7, 7), (5, 9), (9, 5), (1, 8), (8, 1))):
            problem = files.parse_problem(f"B=2 Hq=4 Hkv=2 Nq={queries} Nk={keys} d=16 bf16 {mask}")
            pairs = sum(mask == "none" or j <= i + keys - queries for i in range(queries) for j in range(keys))
            self.assertEqual(2 * 4 * pairs * 4 * 16, files.flops(problem, "forward"))
            self.assertEqual(2.5 * 2 * 4 * pairs * 4 * 16, files.flops(problem, "backward"))

    def test_problem_is_read_as_it_is_written(self):
        text = "B=1 Hq=16 Hkv=8 Nq=4096 Nk=512 d=128 bf16 causal"
        self.assertEqual({"B": 1, "Hq": 16, "Hkv": 8, "Nq": 4096, "Nk": 512, "d": 128, "dtype": "bf16", "mask": "causal",
                          "packed": False, "text": text}, files.parse_problem(text))  # fmt: skip
        self.assertTrue(files.parse_problem("B=2 Hq=1 Hkv=1 Nq=7 Nk=7 d=64 bf16 none seqlens=5,7")["packed"])


class Files(unittest.TestCase):
    def test_bad_files_are_told_in_a_sentence(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "r.json"
            for text in (None, "{", "[]", "{}", '{"rows": [{}]}'):
                if text is not None:
                    path.write_text(text)
                with self.assertRaisesRegex(files.BadResults, "r.json"):
                    files.read(path)

    def test_written_file_is_read_back(self):
        row = {"stage": "02", "rung": "b", "name": "split_kv", "pass": "forward", "status": "verified", "problem": {"text": "p"}}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "r.json"
            files.write(path, {"rows": [row]})
            self.assertEqual({"rows": [row]}, files.read(path))
            self.assertEqual(["r.json"], [file.name for file in pathlib.Path(folder).iterdir()])


if __name__ == "__main__":
    unittest.main()
