package runs

import (
	"io/fs"
	"path"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestFileNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 300)
	for _, c := range []struct{ template, key, want string }{
		{"{key}.pdf", "CUST-1", "CUST-1.pdf"},
		{"{key}.{ext}", "a b_c.d+e=f,g@h", "a b_c.d+e=f,g@h.pdf"},
		{"{step}/{shard}/{key}-{ordinal}.pdf", "A", "render/0012/A-12345.pdf"},
		{"{key}.pdf", "../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd.pdf"},
		{"{key}", "..", "%2E%2E"},
		{"{key}", ".hidden", "%2Ehidden"},
		{"{key}", "/abs", "%2Fabs"},
		{"{key}", `C:\x`, "C%3A%5Cx"},
		{"{key}", "nul", "%6Eul"},
		{"{key}.pdf", "COM1", "%43OM1.pdf"},
		{"{key}.pdf", "COM10", "COM10.pdf"},
		{"{key}", "end. ", "end.%20"},
		{"{key}", " begin", "%20begin"},
		{"{key}", "", "%00"},
		{"{key}", "é\x00\n\u202e~%*?|<>\"", "%C3%A9%00%0A%E2%80%AE%7E%25%2A%3F%7C%3C%3E%22"},
		{"{key}.pdf", long, strings.Repeat("x", 160) + "~c5aab184a468258c.pdf"},
	} {
		names, err := newFileNames(c.template)
		if err != nil {
			t.Fatal(err)
		}
		if got := names.of(&named{c.key, "render", "application/pdf", 12345}); got != c.want {
			t.Errorf("%s of %q: got %q, want %q", c.template, c.key, got, c.want)
		}
	}
	for template, says := range map[string]string{
		"all.pdf": "it needs {key} or {ordinal}", "{key": "without its }", "{name}": "there is no {name}",
		"../{key}": "leads nowhere but into", "/{key}": "is empty or begins", "a//{key}": "is empty", "{key}/": "is empty",
		`a\{key}`: "not for names", "a:{key}": "not for names", "é{key}": "not for names", ".{key}": "begins with a dot",
		"": "it needs {key}",
	} {
		if _, err := newFileNames(template); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %s", template, err, says)
		}
	}
}

// Names that differ in case alone are one on some machines, so the later ones get their ordinals.
func TestFileNamesDoNotCollide(t *testing.T) {
	t.Parallel()
	names, err := newFileNames("{key}.pdf")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a.pdf", "A~1.pdf", "a~2.pdf", "b.pdf", "B~4.pdf"}
	for i, key := range []string{"a", "A", "a", "b", "B"} {
		if got := names.of(&named{key: key, ordinal: i}); got != want[i] {
			t.Errorf("%d: got %q, want %q", i, got, want[i])
		}
	}
}

// A directory with the name of the index would leave no place for it when all files are written.
func TestNoDirectoryIsCalledAsTheIndex(t *testing.T) {
	t.Parallel()
	names, err := newFileNames("{key}/{ordinal}")
	if err != nil {
		t.Fatal(err)
	}
	names.reserve("index.csv")
	for key, want := range map[string]string{
		"index.csv": "%69ndex.csv/0", "INDEX.csv": "%49NDEX.csv/0", "%69ndex.csv": "%2569ndex.csv/0",
	} {
		if got := names.of(&named{key: key}); got != want {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
}

func FuzzFileNames(f *testing.F) {
	for _, key := range []string{"a", "../x", "CON", "é", "a/b", strings.Repeat("%", 90), "x. "} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		names, err := newFileNames("{step}/{key}.{ext}")
		if err != nil {
			t.Fatal(err)
		}
		name := names.of(&named{key: key, step: key, ordinal: 7})
		if path.Clean(name) != name || !fs.ValidPath(name) {
			t.Errorf("%q became %q", key, name)
		}
		for part := range strings.SplitSeq(name, "/") {
			if part == "" || part[0] == '.' || len(part) > 255 || isDevice(part) || !utf8.ValidString(part) ||
				strings.ContainsAny(part, "\\:*?\"<>|\x00\n") || strings.HasSuffix(part, ".") || strings.HasSuffix(part, " ") {
				t.Errorf("%q became %q", key, name)
			}
		}
		if again := names.of(&named{key: key, step: key, ordinal: 8}); strings.EqualFold(again, name) {
			t.Errorf("%q became %q twice", key, name)
		}
	})
}
