package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/tranchehq/tranche/internal/api"
)

// inputFiles are what the client is made with beside the document.
func inputFiles() []string {
	return []string{
		"oapi-codegen.yaml", "templates/client.tmpl", "templates/empty.tmpl", "templates/imports.tmpl",
		"templates/typedef.tmpl", "templates/param-types.tmpl",
	}
}

// stampOf says what a generated file was made from, and what it is: neither may change without the other.
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
	for _, name := range inputFiles() {
		text, err := os.ReadFile(filepath.Join(root, "tools", "generate", name))
		if err != nil {
			return "", err
		}
		_, _ = source.Write(text)
	}
	return fmt.Sprintf("\n// Of %x, is %x.\n", source.Sum(nil)[:16], sha256.Sum256(code)), nil
}

// stamp adds its stamp to a file.
func stamp(file, root string) error {
	code, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	line, err := stampOf(root, code)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(code, line...), 0o644) //nolint:gosec // for everybody
}

var errStale = errors.New("is not what the API makes of it now; run: make generate")

// fresh compares a file's stamp with what it should be.
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
