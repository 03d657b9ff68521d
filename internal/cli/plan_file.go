package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// PlanFile is a plan as a person wrote it.
type PlanFile struct {
	Path string
	Name string // the plan's, when it does not give itself one: the file's without its ending
	Text string
}

// IsPlanFile reports whether an argument means a file, and not a plan on record: it ends as such files do, or is there.
func IsPlanFile(arg string) bool {
	if slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(arg))) {
		return true
	}
	info, err := os.Stat(arg)
	return err == nil && !info.IsDir()
}

// ReadPlan reads a file, or standard input for -.
func ReadPlan(path string, stdin io.Reader) (PlanFile, error) {
	base := filepath.Base(path)
	p := PlanFile{Path: path, Name: strings.TrimSuffix(base, filepath.Ext(base))}
	from := stdin
	if path == "-" {
		p.Path, p.Name = "standard input", ""
	} else {
		file, err := os.Open(path)
		if err != nil {
			return p, &usageError{fmt.Sprintf("plan %s: %v", path, errors.Unwrap(err))}
		}
		defer func() { _ = file.Close() }()
		from = file
	}
	text, err := io.ReadAll(io.LimitReader(from, gather.MaxPlanBytes+1))
	switch {
	case err != nil:
		return p, &usageError{fmt.Sprintf("plan %s: %v", p.Path, cmp.Or(errors.Unwrap(err), err))}
	case len(text) == 0:
		return p, &usageError{fmt.Sprintf("plan %s is empty; it must be YAML or JSON with the steps of a plan", p.Path)}
	}
	p.Text = string(text)
	return p, nil
}

// Explain names the file, and the line in it, when the server refused the plan for what stands in it. Whether a plan is
// good is the server's to say: it may know more fields than this program.
func (p *PlanFile) Explain(err error) error {
	refused, ok := errors.AsType[*client.ProblemError](err)
	if !ok || refused.Status != http.StatusUnprocessableEntity {
		return err
	}
	_, wrong := gather.Parse(p.Name, []byte(p.Text))
	if bad, ok := errors.AsType[*strictyaml.Error](wrong); ok {
		bad.Name = p.Path
		return bad
	}
	return err
}
