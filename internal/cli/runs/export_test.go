package runs

import (
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
