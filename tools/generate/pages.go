package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/workqueue"
)

type made struct {
	page, what string
	text       func(root string) (string, error)
}

func pages() []made {
	return []made{
		{"docs/api.md", "operations", table},
		{"docs/operations.md", "settings of a step", settings},
		{waitsPage, "named times", waits},
	}
}

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

// unusualRole returns an operation's role in parentheses, or "" for a viewer's GET and an operator's change.
func (o operation) unusualRole() string {
	usual := map[bool]string{true: " (viewer)", false: " (operator)"}[o.method == http.MethodGet]
	return strings.TrimSuffix(fmt.Sprintf(" (%s)", o.Extensions["x-tranche-role"]), usual)
}

func table(string) (string, error) {
	var b strings.Builder
	all := operations()
	for _, tag := range api.Document().Tags {
		fmt.Fprintf(&b, "\n**%s.** %s\n\n| operation | what |\n|---|---|\n",
			strings.ToUpper(tag.Name[:1])+tag.Name[1:], tag.Description)
		for _, op := range all {
			if op.Tags[0] == tag.Name {
				fmt.Fprintf(&b, "| `%s %s` | %s%s |\n", op.method, op.path, op.Summary, op.unusualRole())
			}
		}
	}
	b.WriteString("\n")
	return b.String(), nil
}

func (m made) in(page []byte, root string) ([]byte, error) {
	begin := fmt.Sprintf("<!-- %s: written by make generate -->\n", m.what)
	end := fmt.Sprintf("<!-- end of %s -->\n", m.what)
	before, rest, ok := bytes.Cut(page, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !ok || !closed {
		return nil, fmt.Errorf("%s has no place for the table of %s: the lines %q and %q", m.page, m.what, begin, end)
	}
	text, err := m.text(root)
	return slices.Concat(before, []byte(begin), []byte(text), []byte(end), after), err
}

func (m made) write(root string) error {
	file := filepath.Join(root, m.page)
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if page, err = m.in(page, root); err != nil {
		return err
	}
	return os.WriteFile(file, page, 0o644) //nolint:gosec // for everybody
}

// settings returns the table of step settings. Defaults are in parentheses at the end of their descriptions.
func settings(string) (string, error) {
	var b strings.Builder
	b.WriteString("\n| plan | flag | default | meaning |\n|---|---|---|---|\n")
	flags := maps.Collect(workqueue.Flags())
	of := reflect.TypeFor[workqueue.StepSettings]()
	for field := range reflect.TypeFor[workqueue.StepOverrides]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		words, otherwise, _ := strings.Cut(strings.TrimSuffix(field.Tag.Get("doc"), ")"), " (")
		setting, _ := of.FieldByName(field.Name)
		flag := "`" + flags[name] + "`"
		if field.Type.Kind() == reflect.Slice {
			flag += " …"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s%s |\n", name, flag, otherwise, words, bounds(setting.Tag))
	}
	b.WriteString("\n")
	return b.String(), nil
}

func bounds(tag reflect.StructTag) string {
	least, most, bounded := strings.Cut(tag.Get("bounds"), " ")
	if !bounded {
		return ""
	}
	text := fmt.Sprintf("; %s to %s", least, most)
	if zero := tag.Get("zero"); zero != "" {
		text += ", 0 " + zero
	}
	return text
}
