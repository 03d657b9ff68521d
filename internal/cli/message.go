package cli

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

// HeadersText shows the headers of a message, by name.
func HeadersText(headers map[string][]string, room int) string {
	if len(headers) == 0 {
		return ""
	}
	t := Table{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		t.Row("  "+Inert(name), Shown(Inert(strings.Join(headers[name], ", ")), room))
	}
	return "\nheaders\n" + t.String()
}

// ContentText shows the body of a message, on a terminal a screen and a half unless all of it is asked for.
func ContentText(c *client.Content, room int, full bool) string {
	head := fmt.Sprintf("\nbody, %s bytes", Count(int64(c.Size)))
	if c.Unpacked != "" {
		head += " unpacked from " + Inert(c.Unpacked)
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
	text = InertText(text)
	cut := c.Truncated
	if shown := Shown(text, room); !full && shown != text {
		text, cut = shown, true
	}
	if cut {
		text += "\n(there is more: --full shows all of it)"
	}
	return head + "\n" + strings.TrimRight(text, "\n") + "\n"
}
