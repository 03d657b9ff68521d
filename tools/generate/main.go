// Command generate writes what derives from the API description: docs/openapi.json, the description itself; the
// generated part of orchestrator/client, with oapi-codegen; the tables of operations in docs/api.md, of step settings
// in docs/operations.md and of durations in docs/waits.md. Run it with make generate. Its test checks that all are up
// to date.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/tranchehq/tranche/internal/api"
)

// generator generates the Go client. Not ogen: it adds a JSON library, a validator and OpenTelemetry to every program
// that uses the client, and refuses what a newer server adds.
const generator = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"

// Outputs, relative to the root of the repository.
const (
	documentFile = "docs/openapi.json"
	clientFile   = "orchestrator/client/client.gen.go"
)

func main() {
	if err := generate("."); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func generate(root string) error {
	text, err := document()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, documentFile), text, 0o644); err != nil { //nolint:gosec // public
		return err
	}
	for _, piece := range pages() {
		if err := piece.write(root); err != nil {
			return err
		}
	}
	return generateClient(root)
}

func document() ([]byte, error) {
	text, err := api.Document().MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("write the document: %w", err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return nil, fmt.Errorf("indent the document: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func generateClient(root string) error {
	hints, err := hinted(api.Document())
	if err != nil {
		return err
	}
	text, err := json.Marshal(hints)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "generate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	input := filepath.Join(dir, "openapi.json")
	if err := os.WriteFile(input, text, 0o600); err != nil {
		return err
	}
	output, err := filepath.Abs(filepath.Join(root, clientFile))
	if err != nil {
		return err
	}
	//nolint:noctx // it ends automatically
	run := exec.Command("go", "run", generator, "-config", "oapi-codegen.yaml", "-o", output, input)
	run.Dir, run.Stderr, run.Stdout = filepath.Join(root, "tools", "generate"), os.Stderr, os.Stderr
	run.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
	if err := run.Run(); err != nil {
		return fmt.Errorf("run %s: %w", generator, err)
	}
	return stamp(output, root)
}

// stampOf returns a line with the hash of a generated file and its inputs: neither may change alone.
func stampOf(root string, code []byte) (string, error) {
	source := sha256.New()
	hints, err := hinted(api.Document())
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(hints)
	if err != nil {
		return "", fmt.Errorf("write the hints: %w", err)
	}
	_, _ = source.Write(text) // never fails
	_, _ = io.WriteString(source, generator)
	for _, name := range []string{
		"oapi-codegen.yaml", "templates/client.tmpl", "templates/empty.tmpl", "templates/imports.tmpl",
		"templates/typedef.tmpl", "templates/param-types.tmpl",
	} {
		text, err := os.ReadFile(filepath.Join(root, "tools", "generate", name))
		if err != nil {
			return "", err
		}
		_, _ = source.Write(text)
	}
	return fmt.Sprintf("\n// Of %x, is %x.\n", source.Sum(nil)[:16], sha256.Sum256(code)), nil
}

func stamp(file, root string) error {
	code, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	line, err := stampOf(root, code)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(code, line...), 0o644) //nolint:gosec // public
}

var errStale = errors.New("is not what the API makes of it now; run: make generate")

// fresh returns an error if a file's stamp is not up to date.
func fresh(file, root string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	at := bytes.LastIndex(text, []byte("\n// Of "))
	if at < 0 {
		return fmt.Errorf("%s %w", file, errStale)
	}
	want, err := stampOf(root, text[:at])
	if err != nil {
		return err
	}
	if string(text[at:]) != want {
		return fmt.Errorf("%s %w", file, errStale)
	}
	return nil
}
