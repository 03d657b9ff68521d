package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

const maxConfig = 1 << 20

// setting is one line of a config file.
type setting struct {
	value string
	line  int
}

// configFile gives the flags of serve values from a YAML file of flag names. The command line wins over the
// environment, and that over the file.
type configFile struct{ settings map[string]setting }

// readConfig implements kong.ConfigurationLoader.
func readConfig(r io.Reader) (kong.Resolver, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxConfig))
	if err != nil {
		return nil, fmt.Errorf("read the config file: %w", err)
	}
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, brokenConfig(err)
	}
	config := &configFile{settings: map[string]setting{}}
	for _, doc := range file.Docs {
		if err := config.add(doc.Body); err != nil {
			return nil, err
		}
	}
	return config, nil
}

// brokenConfig says an error of the YAML reader in one line.
func brokenConfig(err error) error {
	var broken yaml.Error
	if errors.As(err, &broken) && broken.GetToken() != nil {
		return fmt.Errorf("config file, line %d: %s", broken.GetToken().Position.Line, broken.GetMessage())
	}
	return fmt.Errorf("config file: %w", err)
}

func (c *configFile) add(body ast.Node) error {
	var pairs []*ast.MappingValueNode
	switch node := body.(type) {
	case nil, *ast.CommentGroupNode:
		return nil
	case *ast.MappingNode:
		pairs = node.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{node}
	default:
		return fmt.Errorf("config file, line %d: this is not a setting, like listen: 127.0.0.1:8480",
			body.GetToken().Position.Line)
	}
	for _, pair := range pairs {
		line := pair.Key.GetToken().Position.Line
		name := strings.ReplaceAll(pair.Key.GetToken().Value, "_", "-")
		value, ok := pair.Value.(ast.ScalarNode)
		if !ok {
			return fmt.Errorf("config file, line %d: %s takes one value", line, name)
		}
		if before, ok := c.settings[name]; ok {
			return fmt.Errorf("config file, line %d: %s stands on line %d already", line, name, before.line)
		}
		c.settings[name] = setting{value: fmt.Sprint(value.GetValue()), line: line}
	}
	return nil
}

// Validate refuses names that serve has no flag for.
func (c *configFile) Validate(app *kong.Application) error {
	var known []string
	for _, node := range app.Children {
		if node.Name != "serve" {
			continue
		}
		for _, flag := range node.Flags {
			if flag.Name != "config" {
				known = append(known, flag.Name)
			}
		}
	}
	slices.Sort(known)
	for name, s := range c.settings {
		if !slices.Contains(known, name) {
			return fmt.Errorf("config file, line %d: there is no setting %q; the settings are %s", s.line, name,
				strings.Join(known, ", "))
		}
	}
	return nil
}

// Resolve implements kong.Resolver.
func (c *configFile) Resolve(_ *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	s, ok := c.settings[flag.Name]
	if !ok || parent.Command == nil || parent.Command.Name != "serve" {
		return nil, nil //nolint:nilnil // kong's way to say that there is no value
	}
	for _, env := range flag.Envs {
		if _, set := os.LookupEnv(env); set {
			return nil, nil //nolint:nilnil // the environment wins
		}
	}
	return s.value, nil
}
