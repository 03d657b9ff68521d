package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/orchestrator/client"
)

// headersText shows the headers of a message, by name.
func headersText(headers map[string][]string) string {
	if len(headers) == 0 {
		return ""
	}
	t := table{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		t.row("  "+inert(name), short(inert(strings.Join(headers[name], ", ")), maxShown))
	}
	return "\nheaders\n" + t.String()
}

// contentText shows the body of a message, on a screen and a half unless all of it is asked for.
func contentText(c *client.Content, full bool) string {
	head := fmt.Sprintf("\nbody, %s bytes", count(int64(c.Size)))
	if c.Unpacked != "" {
		head += " unpacked from " + inert(c.Unpacked)
	}
	text := c.Text
	switch {
	case c.Size == 0:
		return head + "\n"
	case len(c.JSON) > 0:
		var indented bytes.Buffer
		if json.Indent(&indented, c.JSON, "", "  ") == nil {
			text = indented.String()
		}
	case len(c.Base64) > 0:
		head += " in base64"
		text = base64.StdEncoding.EncodeToString(c.Base64)
	}
	text = inertText(text)
	cut := c.Truncated
	if !full && len([]rune(text)) > maxShown {
		text, cut = short(text, maxShown), true
	}
	if cut {
		text += "\n(there is more: --full shows all of it)"
	}
	return head + "\n" + strings.TrimRight(text, "\n") + "\n"
}
