package archtest_test

import (
	"bufio"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// statements is how many docs/security.md makes, in the table of what is proved.
const statements = 20

// Every statement in the table of docs/security.md names tests that there are, and that say which statement they prove;
// one without a test says that it is not claimed. No test proves a statement that does not name it.
func TestEveryStatementOnSecurityHasItsTests(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	proofs := proofsIn(t, root)
	named := map[string][]int{}
	seen := 0
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) \| .* \| (.*) \|$`).FindAllStringSubmatch(string(page), -1) {
		number, err := strconv.Atoi(row[1])
		if seen++; err != nil || number != seen {
			t.Errorf("statement %s is number %d of the table", row[1], seen)
		}
		tests := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(row[2], -1)
		if len(tests) == 0 && !strings.HasPrefix(row[2], "not claimed") {
			t.Errorf("statement %d has no test, and does not say that it is not claimed", number)
		}
		for _, test := range tests {
			named[test[1]] = append(named[test[1]], number)
			if !slices.Contains(proofs[test[1]], number) {
				t.Errorf("statement %d: %s is not there, or does not say PROOF: who may do what, %d", number, test[1], number)
			}
		}
	}
	if seen != statements {
		t.Errorf("the table has %d statements; want %d", seen, statements)
	}
	for test, numbers := range proofs {
		for _, number := range numbers {
			if !slices.Contains(named[test], number) {
				t.Errorf("%s proves statement %d, which does not name it in docs/security.md", test, number)
			}
		}
	}
}

// proofsIn returns what the tests of the module say that they prove.
func proofsIn(t *testing.T, root string) map[string][]int {
	t.Helper()
	cites := regexp.MustCompile(`^// PROOF: who may do what, ([0-9, and]+)\.`)
	test := regexp.MustCompile(`^func (Test\w+)\(`)
	found := map[string][]int{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // it was read
		var numbers []int
		for lines := bufio.NewScanner(file); lines.Scan(); {
			line := lines.Text()
			if m := cites.FindStringSubmatch(line); m != nil {
				for _, n := range regexp.MustCompile(`\d+`).FindAllString(m[1], -1) {
					number, _ := strconv.Atoi(n) // it is digits
					numbers = append(numbers, number)
				}
			}
			if m := test.FindStringSubmatch(line); m != nil {
				found[m[1]] = append(found[m[1]], numbers...)
				numbers = nil
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
