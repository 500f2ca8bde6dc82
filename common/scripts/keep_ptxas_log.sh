#!/bin/sh
# Compiler launcher for nvcc: keep_ptxas_log.sh nvcc ... -o X.o ... writes what ptxas says of each kernel (registers,
# shared memory, spills) to X.o.ptxas, for check_ptxas.py, and only the rest to the terminal.
object=
previous=
for argument in "$@"; do
    [ "$previous" = -o ] && object=$argument
    previous=$argument
done
case $object in
    *.o) ;;
    *) exec "$@" ;;
esac
log=$object.ptxas
"$@" 2> "$log"
status=$?
grep -v -e '^ptxas info' -e '^    [0-9]* bytes stack frame' "$log" >&2
exit $status
