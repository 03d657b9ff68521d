package runs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestWriteWholeReplacesOnlyPlainFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain, link := filepath.Join(dir, "plain"), filepath.Join(dir, "link")
	testenv.NoError(t, os.Symlink(plain, link))
	for _, name := range []string{plain, link, os.DevNull} {
		testenv.Same(t, testenv.Must(writeWhole(name, strings.NewReader("an export")))(t), 9, "%s: bytes", name)
	}
	testenv.Same(t, string(testenv.Must(os.ReadFile(plain))(t)), "an export", "through the link")
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", info, err)
	}
	if info, err := os.Lstat(os.DevNull); err != nil || info.Mode()&os.ModeDevice == 0 {
		t.Errorf("%s is not a device any more: %v, %v", os.DevNull, info, err)
	}
	testenv.Same(t, testenv.Must(os.Stat(plain))(t).Mode().Perm()&0o077, 0, "others may read the export")
}

const exported = `{"ordinal":0,"key":"A","state":"done","result_bytes":"JVBERg==","content_type":"application/pdf"}
{"ordinal":1,"key":"a","state":"done","step":"render","result":{"n": 1}}
{"ordinal":2,"key":"=../b","state":"done","step":"render","result_bytes":"AAE=","content_type":"+x|'/c'!y"}
`

// exportTo writes files as the command does.
func exportTo(t *testing.T, r *runExport, from io.Reader) (*fileExport, error) {
	t.Helper()
	dir, err := r.openDir()
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names := testenv.Must(newFileNames(r.Name))(t)
	wanted := testenv.Must(r.wanted(nil))(t)
	out := &fileExport{dir: dir, names: names, made: map[string]bool{".": true}, wanted: wanted, resume: r.Resume}
	if err := out.begin(r.Index, r.Raw); err != nil {
		return nil, err
	}
	return out, out.all(from)
}

// PROOF: who may do what, 10.
func TestExportOfFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "out")
	r := &runExport{Dir: dir, Name: "{key}.{ext}", Index: "ndjson"}
	read := func(name string) string {
		t.Helper()
		return string(testenv.Must(os.ReadFile(filepath.Join(dir, name)))(t))
	}
	// When it is interrupted, there is no index, and a directory with something in it is refused.
	_, err := exportTo(t, r, strings.NewReader(exported[:len(exported)-20]))
	testenv.Says(t, err, "was interrupted", "an export that ends early")
	_, err = os.Stat(filepath.Join(dir, "index.ndjson"))
	testenv.Is(t, err, os.ErrNotExist, "an interrupted export has an index")
	_, err = exportTo(t, r, strings.NewReader(exported))
	testenv.Says(t, err, "--resume", "into a directory that is not empty")
	// It continues: what is there and right stays, what is wrong is written again, and a link is not followed.
	outside := filepath.Join(t.TempDir(), "outside")
	testenv.NoError(t, errors.Join(os.WriteFile(outside, []byte("mine"), 0o600),
		os.Remove(filepath.Join(dir, "a.json")), os.Symlink(outside, filepath.Join(dir, "a.json"))))
	r.Resume = true
	out, err := exportTo(t, r, strings.NewReader(exported))
	if err != nil || out.files != 3 || out.kept != 1 || out.bytes != 4+8+2 {
		t.Errorf("%+v, %v", out, err)
	}
	testenv.Same(t, read("A.pdf")+"|"+read("a.json")+"|"+read("=..%2Fb.bin"), "%PDF|{\"n\": 1}|\x00\x01", "the files")
	testenv.Same(t, string(testenv.Must(os.ReadFile(outside))(t)), "mine", "what lies outside became")
	index := read("index.ndjson")
	for _, want := range []string{
		`{"key":"A","ordinal":0,"file":"A.pdf","bytes":4,"content_type":"application/pdf","sha256":"315d429b7714cedb6ad04ac3`,
		`{"key":"a","ordinal":1,"file":"a.json","bytes":8,"content_type":"application/json",`,
	} {
		testenv.Has(t, index, want, "the index")
	}
	r.Index = "csv"
	testenv.Must(exportTo(t, r, strings.NewReader(exported)))(t)
	testenv.Has(t, read("index.csv"), "\n'=../b,2,'=..%2Fb.bin,2,'+x|'/c'!y,", "the index as CSV")
	left := testenv.Must(os.ReadDir(dir))(t)
	testenv.Same(t, len(left), 5, "there")
}

func TestExportOfSomeFiles(t *testing.T) {
	t.Parallel()
	keys := filepath.Join(t.TempDir(), "keys.txt")
	testenv.NoError(t, os.WriteFile(keys, []byte("a\n\nnobody\n"), 0o600))
	for _, pick := range []itemChoice{{Keys: keys}, {Key: []string{"a", "nobody"}}} {
		dir := filepath.Join(t.TempDir(), "out")
		r := &runExport{Dir: dir, Name: "{key}.{ext}", Index: "ndjson", itemChoice: pick}
		twin := `{"ordinal":3,"key":"a","state":"done","step":"render","result":3}` // on_duplicate: allow
		out, err := exportTo(t, r, strings.NewReader(exported+twin))
		if err != nil || out.files != 2 || out.wanted["a"] || !out.wanted["nobody"] {
			t.Errorf("%+v: %+v, %v", pick, out, err)
		}
		for name, want := range map[string]string{"a.json": `{"n": 1}`, "a~3.json": "3"} {
			testenv.Same(t, string(testenv.Must(os.ReadFile(filepath.Join(dir, name)))(t)), want, "%s has", name)
		}
	}
	testenv.Says(t, (&runExport{Name: "{key}", Format: "ndjson", itemChoice: itemChoice{Keys: keys}}).Validate(), "--dir",
		"keys without a directory")
}

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
		names := testenv.Must(newFileNames(c.template))(t)
		testenv.Same(t, names.of(&named{c.key, "render", "application/pdf", 12345}), c.want, "%s of %q", c.template, c.key)
	}
	for template, says := range map[string]string{
		"all.pdf": "it needs {key} or {ordinal}", "{key": "without its }", "{name}": "there is no {name}",
		"../{key}": "leads nowhere but into", "/{key}": "is empty or begins", "a//{key}": "is empty", "{key}/": "is empty",
		`a\{key}`: "not for names", "a:{key}": "not for names", "é{key}": "not for names", ".{key}": "begins with a dot",
		"": "it needs {key}",
	} {
		_, err := newFileNames(template)
		testenv.Says(t, err, says, "%q", template)
	}
}

// Names that differ in case alone are one on some machines, so the later ones get their ordinals.
func TestFileNamesDoNotCollide(t *testing.T) {
	t.Parallel()
	names := testenv.Must(newFileNames("{key}.pdf"))(t)
	want := []string{"a.pdf", "A~1.pdf", "a~2.pdf", "b.pdf", "B~4.pdf"}
	for i, key := range []string{"a", "A", "a", "b", "B"} {
		testenv.Same(t, names.of(&named{key: key, ordinal: i}), want[i], "%d", i)
	}
}

// A directory with the name of the index would leave no place for it when all files are written.
func TestNoDirectoryIsCalledAsTheIndex(t *testing.T) {
	t.Parallel()
	names := testenv.Must(newFileNames("{key}/{ordinal}"))(t)
	names.reserve("index.csv")
	for key, want := range map[string]string{
		"index.csv": "%69ndex.csv/0", "INDEX.csv": "%49NDEX.csv/0", "%69ndex.csv": "%2569ndex.csv/0",
	} {
		testenv.Same(t, names.of(&named{key: key}), want, "%s", key)
	}
}

func FuzzFileNames(f *testing.F) {
	for _, key := range []string{"a", "../x", "CON", "é", "a/b", strings.Repeat("%", 90), "x. "} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		names := testenv.Must(newFileNames("{step}/{key}.{ext}"))(t)
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
