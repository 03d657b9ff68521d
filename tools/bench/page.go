package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// What stands between these lines of a page is the bench's to write.
const (
	pageBegin = "<!-- written by: make bench -->\n"
	pageEnd   = "<!-- end -->\n"
)

// page is a Markdown file with a place for the tables, read before anything is measured.
type page struct {
	path         string
	before, rest string
}

func openPage(path string) (*page, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("-write: %w", err)
	}
	before, rest, err := cutPage(string(raw))
	if err != nil {
		return nil, fmt.Errorf("-write: %s: %w", path, err)
	}
	return &page{path, before, rest}, nil
}

// cutPage returns what stands before and after the place for the tables, with its two lines.
func cutPage(text string) (before, rest string, err error) {
	before, after, begun := strings.Cut(text, pageBegin)
	_, rest, ended := strings.Cut(after, pageEnd)
	if !begun || !ended {
		return "", "", errors.New("it has no place for the tables, between the lines " +
			strings.TrimSpace(pageBegin) + " and " + strings.TrimSpace(pageEnd))
	}
	return before + pageBegin, pageEnd + rest, nil
}

func (p *page) fill(r *report) error {
	var text strings.Builder
	if err := r.write(&text, formatMarkdown); err != nil {
		return err
	}
	if err := os.WriteFile(p.path, []byte(p.before+"\n"+text.String()+"\n"+p.rest), 0o644); err != nil {
		return fmt.Errorf("-write: %w", err)
	}
	return nil
}
