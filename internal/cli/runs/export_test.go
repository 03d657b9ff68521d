package runs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWriteWholeReplacesOnlyPlainFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain, link := filepath.Join(dir, "plain"), filepath.Join(dir, "link")
	if err := os.Symlink(plain, link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{plain, link, os.DevNull} {
		if size, err := writeWhole(name, strings.NewReader("an export")); err != nil || size != 9 {
			t.Errorf("%s: %d bytes, %v", name, size, err)
		}
	}
	if text, err := os.ReadFile(plain); err != nil || string(text) != "an export" {
		t.Errorf("through the link: %q, %v", text, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", info, err)
	}
	if info, err := os.Lstat(os.DevNull); err != nil || info.Mode()&os.ModeDevice == 0 {
		t.Errorf("%s is no device any more: %v, %v", os.DevNull, info, err)
	}
	if info, err := os.Stat(plain); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others may read the export: %v, %v", info, err)
	}
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
	names, err := newFileNames(r.Name)
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := r.wanted(nil)
	if err != nil {
		t.Fatal(err)
	}
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
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	// It breaks off: there is no index, and a directory with something in it is refused.
	if _, err := exportTo(t, r, strings.NewReader(exported[:len(exported)-20])); err == nil ||
		!strings.Contains(err.Error(), "broke off") {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "index.ndjson")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an export that broke off has an index: %v", err)
	}
	if _, err := exportTo(t, r, strings.NewReader(exported)); err == nil || !strings.Contains(err.Error(), "--resume") {
		t.Errorf("into a directory that is not empty: %v", err)
	}
	// It goes on: what is there and right stays, what is wrong is written anew, and a link is not followed.
	outside := filepath.Join(t.TempDir(), "outside")
	if err := errors.Join(os.WriteFile(outside, []byte("mine"), 0o600),
		os.Remove(filepath.Join(dir, "a.json")), os.Symlink(outside, filepath.Join(dir, "a.json"))); err != nil {
		t.Fatal(err)
	}
	r.Resume = true
	out, err := exportTo(t, r, strings.NewReader(exported))
	if err != nil || out.files != 3 || out.kept != 1 || out.bytes != 4+8+2 {
		t.Errorf("%+v, %v", out, err)
	}
	if got := read("A.pdf") + "|" + read("a.json") + "|" + read("=..%2Fb.bin"); got != "%PDF|{\"n\": 1}|\x00\x01" {
		t.Errorf("%q", got)
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "mine" {
		t.Errorf("what lies outside became %q, %v", text, err)
	}
	index := read("index.ndjson")
	for _, want := range []string{
		`{"key":"A","ordinal":0,"file":"A.pdf","bytes":4,"content_type":"application/pdf","sha256":"315d429b7714cedb6ad04ac3`,
		`{"key":"a","ordinal":1,"file":"a.json","bytes":8,"content_type":"application/json",`,
	} {
		if !strings.Contains(index, want) {
			t.Errorf("the index is\n%s\nand has not\n%s", index, want)
		}
	}
	r.Index = "csv"
	if _, err := exportTo(t, r, strings.NewReader(exported)); err != nil {
		t.Error(err)
	}
	if table := read("index.csv"); !strings.Contains(table, "\n'=../b,2,'=..%2Fb.bin,2,'+x|'/c'!y,") {
		t.Errorf("%s", table)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 5 {
		t.Errorf("there are %v, %v", left, err)
	}
}

func TestExportOfSomeFiles(t *testing.T) {
	t.Parallel()
	keys := filepath.Join(t.TempDir(), "keys.txt")
	if err := os.WriteFile(keys, []byte("a\n\nnobody\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, pick := range []itemChoice{{Keys: keys}, {Key: []string{"a", "nobody"}}} {
		dir := filepath.Join(t.TempDir(), "out")
		r := &runExport{Dir: dir, Name: "{key}.{ext}", Index: "ndjson", itemChoice: pick}
		out, err := exportTo(t, r, strings.NewReader(exported))
		if err != nil || out.files != 1 || len(out.wanted) != 1 || !out.wanted["nobody"] {
			t.Errorf("%+v: %+v, %v", pick, out, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "a.json")); err != nil {
			t.Error(err)
		}
	}
	if err := (&runExport{Name: "{key}", Format: "ndjson", itemChoice: itemChoice{Keys: keys}}).Validate(); err == nil ||
		!strings.Contains(err.Error(), "--dir") {
		t.Errorf("keys without a directory: %v", err)
	}
}
