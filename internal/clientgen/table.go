package main

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api"
)

// The lines of the page between which the table stands.
const (
	tableBegin = "<!-- operations: written by make generate -->\n"
	tableEnd   = "<!-- end of operations -->\n"
)

type operation struct {
	method, path string
	*huma.Operation
}

func operations() []operation {
	var all []operation
	for path, item := range api.Document().Paths {
		for method, op := range map[string]*huma.Operation{
			http.MethodGet: item.Get, http.MethodPut: item.Put, http.MethodPost: item.Post, http.MethodDelete: item.Delete,
			http.MethodPatch: item.Patch, http.MethodHead: item.Head, http.MethodOptions: item.Options,
			http.MethodTrace: item.Trace,
		} {
			if op != nil {
				all = append(all, operation{method, path, op})
			}
		}
	}
	slices.SortFunc(all, func(a, b operation) int {
		return cmp.Or(strings.Compare(a.path, b.path), strings.Compare(a.method, b.method))
	})
	return all
}

// table lists all operations, by their tags.
func table() string {
	var b strings.Builder
	all := operations()
	for _, tag := range api.Document().Tags {
		fmt.Fprintf(&b, "\n**%s.** %s\n\n| operation | role | Go | what |\n|---|---|---|---|\n",
			strings.ToUpper(tag.Name[:1])+tag.Name[1:], tag.Description)
		for _, op := range all {
			if op.Tags[0] == tag.Name {
				fmt.Fprintf(&b, "| `%s %s` | %s | `%s` | %s |\n", op.method, op.path, op.Extensions["x-tranche-role"],
					camel(op.OperationID), op.Summary)
			}
		}
	}
	b.WriteString("\n")
	return b.String()
}

// withTable puts the table into the page.
func withTable(page []byte) ([]byte, error) {
	before, rest, ok := bytes.Cut(page, []byte(tableBegin))
	_, after, closed := bytes.Cut(rest, []byte(tableEnd))
	if !ok || !closed {
		return nil, fmt.Errorf("%s has no place for the table of operations: the lines %q and %q", pageFile, tableBegin,
			tableEnd)
	}
	return slices.Concat(before, []byte(tableBegin), []byte(table()), []byte(tableEnd), after), nil
}

func writeTable(file string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if page, err = withTable(page); err != nil {
		return err
	}
	return os.WriteFile(file, page, 0o644) //nolint:gosec // for everybody
}
