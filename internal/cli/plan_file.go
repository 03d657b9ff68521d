package cli

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/gather"
)

// IsPlanFile reports whether an argument means a file, and not a plan on record: it ends as such files do, or is there.
func IsPlanFile(arg string) bool {
	if slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(arg))) {
		return true
	}
	info, err := os.Stat(arg)
	return err == nil && !info.IsDir()
}

// ReadPlan reads a plan from a file, or standard input for -.
func ReadPlan(path string, stdin io.Reader) (TextFile, error) {
	return ReadText("plan", path, stdin, gather.MaxPlanBytes)
}
