package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	pageNet     = "10.0.0."
	pageMachine = "10.0.0.1" // the machine of its examples
	pageName    = "nats-1"
)

var (
	fenced  = regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)\n```$")
	word    = regexp.MustCompile(`'[^']*'|\S+`)
	comment = regexp.MustCompile(`\s+#.*`)
	keyFile = regexp.MustCompile(`/etc/\w+/(\w+\.nk)`)
)

type page struct{ name, text string }

func readPage(repository string, path ...string) (page, error) {
	name := filepath.Join(path...)
	text, err := os.ReadFile(filepath.Join(repository, name))
	if err != nil {
		return page{}, fmt.Errorf("read the page: %w", err)
	}
	return page{name, string(text)}, nil
}

// block returns the only code block that starts with begin.
func (p page) block(begin string) (string, error) {
	var found []string
	for _, match := range fenced.FindAllStringSubmatch(p.text, -1) {
		if strings.HasPrefix(match[1], begin) {
			found = append(found, match[1])
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s has %d blocks that begin with %q, not one", p.name, len(found), begin)
	}
	return found[0], nil
}

func commands(block string) (all [][]string) {
	for line := range strings.Lines(block) {
		words := word.FindAllString(comment.ReplaceAllString(line, ""), -1)
		for i, w := range words {
			words[i] = strings.Trim(w, "'")
		}
		if len(words) > 0 {
			all = append(all, words)
		}
	}
	return all
}

// place replaces the page's addresses, paths and passwords by this cluster's.
func (c *cluster) place(text string) string {
	text = strings.NewReplacer(pageNet, c.net, "tranche_owner:OWNER", "tranche_owner:"+c.password,
		"tranche_app:APP", "tranche_app:"+c.password).Replace(text)
	return keyFile.ReplaceAllString(text, c.dir.Servers("nats", "$1"))
}

// own returns a machine's copy of a file: its name and address are replaced, except in lists of all machines.
func (c *cluster) own(text string, machine int) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Count(line, pageNet) <= 1 {
			line = strings.ReplaceAll(line, pageMachine, fmt.Sprint(pageNet, machine))
			line = strings.ReplaceAll(line, pageName, fmt.Sprint("nats-", machine))
		}
		lines = append(lines, line)
	}
	return c.place(strings.Join(lines, ""))
}

func environment(file string) (env []string) {
	for line := range strings.Lines(file) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			env = append(env, line)
		}
	}
	return env
}
