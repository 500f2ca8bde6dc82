// The online softmax of one query, block by block, in double precision: what `ladder --explain` prints.
#pragma once

#include <ostream>
#include <vector>

#include "common/attention/merge.h"
#include "common/attention/problem.h"

namespace ladder {

/// A block of keys and what the running state becomes with it, by the merge rule in base e.
struct Step {
    int begin, end;                  // keys
    attention::State<double> block;  // of the block alone
    std::vector<double> block_u;     // one value a column of V, like u
    double alpha, beta;              // factors of the old state and of the block's
    attention::State<double> state;  // with the block
    std::vector<double> u;           // likewise
    std::vector<double> W;           // the block's weights relative to the new m
};

/// S: the scores of one query, -inf for hidden keys. V: a row for each. block: keys of a block, at least 1.
std::vector<Step> online_softmax(const std::vector<double>& S, const std::vector<std::vector<double>>& V, int block);

/// The two worked examples of the notes: exponentials 1, 2, 4, 8 with values 1, 2, 3, 4 (O = 49/15), and scores 1, 2, 3, 4 with
/// values 10, 20, 30, 40 (O = 34.93), both in blocks of two keys.
void explain_examples(std::ostream& out);

/// Each query of each head of a problem, without its dropout.
void explain(const attention::Problem& problem, const attention::Inputs& inputs, int block, std::ostream& out);

}  // namespace ladder
