package itemschema_test

import (
	"regexp"
	"testing"

	"github.com/tranchehq/tranche/gather/itemschema"
)

// patterns are some that people write, and some that go wrong easily.
func patterns() []string {
	return []string{
		`^CUST-[0-9]+$`, `^-?[0-9]+(\.[0-9]+)?$`, `[0-9]{3}`, `^a|b$`, `(?i)^no[kK]$`, `^(a|ab)(c|bcd)*$`, `^$`, ``, `a*$`,
		`$^`,
		`x$^`, `^[^a-c]+$`, `(a+)+b`, `^.{2,5}$`, `(?s)^.*z$`, `^a?$|c`, `[[:upper:]]{2}[0-9]{2}`, `(?:^|-)a(?:-|$)`, `^^a$$`,
		`a(?:$|b)`, `\d\D\s?`, `^(?:[A-Z]{2}\d{2}[A-Z0-9]{11,30}|\d{8,10})$`,
	}
}

func TestMachinesAreThoseOfUsualPatterns(t *testing.T) {
	t.Parallel()
	for _, pattern := range patterns() {
		if _, known := itemschema.Finds(pattern, []byte("abc")); !known {
			t.Errorf("%s has no machine", pattern)
		}
	}
	for _, pattern := range []string{`(?m)^a$`, `\ba`, `[ab]*a[ab]{8}$`, `x{150}y{150}`} {
		if _, known := itemschema.Finds(pattern, []byte("abc")); known {
			t.Errorf("%s has a machine", pattern)
		}
	}
	if _, known := itemschema.Finds(`^a`, []byte("é")); known {
		t.Error("it knows characters that are not ASCII")
	}
}

func TestUsualPatternsArePieces(t *testing.T) {
	t.Parallel()
	for pattern, texts := range map[string][]string{
		`^CUST-[0-9]+$`: {"CUST-1", "CUST-0123"}, `^-?[0-9]+(\.[0-9]+)?$`: {"-1.5", "20", "1"}, `^.{2,5}$`: {"ab", "abcde"},
		`^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$`: {"DE12ABCDEFGH123"}, `^\d\D\s?$`: {"1a", "1a "}, `^[^a-c]*$`: {"x"},
	} {
		for _, text := range texts {
			if are, _ := itemschema.Pieces(pattern, []byte(text)); !are {
				t.Errorf("%s: %s is not made of its pieces", pattern, text)
			}
		}
	}
	for _, pattern := range []string{`a`, `^a`, `a$`, `^(a|b)$`, `^(?i)ab$`, `^é$`, `^a"b$`, `^\\\\$`,
		`^(a+)+$`, `^\ba$`, `(?m)^a$`} {
		if _, known := itemschema.Pieces(pattern, []byte("a")); known {
			t.Errorf("%s has pieces", pattern)
		}
	}
}

// FuzzMachine holds machines and pieces against regexp.
func FuzzMachine(f *testing.F) {
	for _, pattern := range patterns() {
		for _, text := range []string{"", "a", "b", "ab", "abbcd", "CUST-12", "CUST-", "-1.5", "1.", "NoK", "a\n", "x",
			"aaab", "az\nz",
			"AB12", "b-a-b", "é", "DE12ABCDEFGH123", "\x00a"} {
			f.Add(pattern, text)
		}
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		want, err := regexp.Compile(pattern)
		if err != nil || len(pattern) > 200 || len(text) > 1000 {
			return
		}
		if is, known := itemschema.Finds(pattern, []byte(text)); known && is != want.MatchString(text) {
			t.Fatalf("%q in %q: %t", pattern, text, is)
		}
		if are, _ := itemschema.Pieces(pattern, []byte(text)); are && !want.MatchString(text) {
			t.Fatalf("%q is not made of the pieces of %q", text, pattern)
		}
	})
}
