package cli

import (
	"fmt"
	"strings"
	"testing"
)

func TestReadKeys(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range 250_000 {
		fmt.Fprintln(&many, i)
	}
	parts, err := ReadKeys("-", strings.NewReader(many.String()))
	if err != nil || len(parts) != 3 || len(parts[0]) != MaxKeysOfRequest || len(parts[2]) != 50_000 ||
		parts[2][49_999] != "249999" {
		t.Errorf("%d parts, %v", len(parts), err)
	}
	parts, err = ReadKeys("-", strings.NewReader("\ufeffa\r\n\r\n b \nc"))
	if err != nil || len(parts) != 1 || strings.Join(parts[0], "|") != "a| b |c" {
		t.Errorf("%q, %v", parts, err)
	}
	wide := strings.Repeat(strings.Repeat("x", 1000)+"\n", 10_000)
	if parts, err = ReadKeys("-", strings.NewReader(wide)); err != nil || len(parts) != 2 {
		t.Errorf("%d parts of long keys, %v", len(parts), err)
	}
	for text, want := range map[string]string{
		"": "no key", "\n\r\n": "no key", strings.Repeat("x", 1<<17): "line 1 is longer", "a\n\xff\n": "line 2 is not UTF-8",
	} {
		if _, err := ReadKeys("-", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.10q: %v; want %q", text, err, want)
		}
	}
}
