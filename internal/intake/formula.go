package intake

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// plainNumber is what spreadsheets read as a number, and never as a formula.
var plainNumber = regexp.MustCompile(`^[+-]?[0-9]+([.,][0-9]+)?([eE][+-]?[0-9]+)?$`)

// Defuse puts an apostrophe before what a spreadsheet would run as a formula, or what would cut a cell short; and
// before what looks as if that had been done. So [Armed] can take it back.
func Defuse(cell string) string {
	if isFormula(cell) || strings.HasPrefix(cell, "'") && isFormula(strings.TrimLeft(cell, "'")) {
		return "'" + cell
	}
	return cell
}

// Armed takes back what Defuse did.
func Armed(cell string) string {
	if rest, ok := strings.CutPrefix(cell, "'"); ok && isFormula(strings.TrimLeft(rest, "'")) {
		return rest
	}
	return cell
}

func isFormula(cell string) bool {
	first, _ := utf8.DecodeRuneInString(cell)
	return cell != "" && strings.ContainsRune("=+-@\t\r\n＝＋－＠", first) && !plainNumber.MatchString(cell) ||
		strings.IndexByte(cell, 0) >= 0
}
