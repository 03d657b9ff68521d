package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// What stands in the page for what is each reader's own.
const (
	pageNet     = "10.0.0."
	pageMachine = "10.0.0.1" // the machine that its examples are for
	pageName    = "nats-1"
)

var (
	fenced  = regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)\n```$")
	word    = regexp.MustCompile(`'[^']*'|\S+`)
	comment = regexp.MustCompile(`\s+#.*`)
	keyFile = regexp.MustCompile(`/etc/\w+/(\w+\.nk)`)
)

// page is a page of the documentation.
type page struct{ name, text string }

func readPage(repository string, path ...string) (page, error) {
	name := filepath.Join(path...)
	text, err := os.ReadFile(filepath.Join(repository, name))
	if err != nil {
		return page{}, fmt.Errorf("read what is to be done: %w", err)
	}
	return page{name, string(text)}, nil
}

// block returns the one block of code that begins so.
func (p page) block(begin string) (string, error) {
	var found []string
	for _, match := range fenced.FindAllStringSubmatch(p.text, -1) {
		if strings.HasPrefix(match[1], begin) {
			found = append(found, match[1])
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s has %d blocks that begin with %q; there should be one", p.name, len(found), begin)
	}
	return found[0], nil
}

// commands returns the words of each line of a block of commands, without quotes and comments.
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

// place puts this machine's addresses, paths and passwords in the place of the page's.
func (c *cluster) place(text string) string {
	text = strings.NewReplacer(pageNet, c.net, "tranche_owner:OWNER", "tranche_owner:"+c.password,
		"tranche_app:APP", "tranche_app:"+c.password).Replace(text)
	return keyFile.ReplaceAllString(text, c.dir.Servers("nats", "$1"))
}

// own is a machine's copy of a file: name and address are its own, and only the lists of all machines stay.
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

// environment is what a file of variables says.
func environment(file string) (env []string) {
	for line := range strings.Lines(file) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			env = append(env, line)
		}
	}
	return env
}
