// The program `ladder`: see ladder --help.
#include <exception>
#include <iostream>

#include "common/ladder/ladder.h"

int main(int argc, char** argv) {
    try {
        ladder::Registry registry;
        ladder::register_stages(registry);
        return ladder::run(registry, {ladder::build_description(), ladder::build_commit()}, argc, argv, std::cout,
                           std::cerr);
    } catch (const std::exception& error) {
        std::cerr << "ladder: " << error.what() << '\n';
        return 1;
    }
}
