package main

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

// planFile is a plan as a person wrote it.
type planFile struct {
	path string
	name string // the plan's, when it does not give itself one: the file's without its ending
	text string
}

// isPlanFile reports whether an argument means a file, and not a plan on record: it ends as such files do, or is there.
func isPlanFile(arg string) bool {
	if slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(arg))) {
		return true
	}
	info, err := os.Stat(arg)
	return err == nil && !info.IsDir()
}

// readPlan reads a file, or standard input for -.
func readPlan(path string, stdin io.Reader) (planFile, error) {
	base := filepath.Base(path)
	p := planFile{path: path, name: strings.TrimSuffix(base, filepath.Ext(base))}
	from := stdin
	if path == "-" {
		p.path, p.name = "standard input", ""
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
		return p, &usageError{fmt.Sprintf("plan %s: %v", p.path, cmp.Or(errors.Unwrap(err), err))}
	case len(text) == 0:
		return p, &usageError{fmt.Sprintf("plan %s is empty; it must be YAML or JSON with the steps of a plan", p.path)}
	}
	p.text = string(text)
	return p, nil
}

// explain names the file, and the line in it, when the server refused the plan for what stands in it. Whether a plan is
// good is the server's to say: it may know more fields than this program.
func (p *planFile) explain(err error) error {
	refused, ok := errors.AsType[*client.ProblemError](err)
	if !ok || refused.Status != http.StatusUnprocessableEntity {
		return err
	}
	_, wrong := gather.Parse(p.name, []byte(p.text))
	if bad, ok := errors.AsType[*strictyaml.Error](wrong); ok {
		bad.Name = p.path
		return bad
	}
	return err
}
