// Prints std::hash<std::string> of each key; tests/unit/data/rocketmq-native.json keeps its output.
// Standard input: one key's UTF-8 as hexadecimal digits a line. Standard output: one hash a line.
#include <functional>
#include <iostream>
#include <string>

int main() {
    for (std::string line; std::getline(std::cin, line);) {
        std::string key;
        for (std::size_t i = 0; i < line.size(); i += 2) {
            key.push_back(static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16)));
        }
        std::cout << std::hash<std::string>{}(key) << '\n';
    }
}
