package apicore

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/klauspost/compress/zstd"
)

// MimeNDJSON is the content type of NDJSON streams.
const MimeNDJSON = "application/x-ndjson"

const (
	maxContent  = 64 << 10 // of a body, unless the caller wants all of it
	maxUnpacked = 16 << 20 // the most that services read
)

// Content is the body of a message: as JSON or text if it is that, else as base64. At most one of the three is set.
type Content struct {
	JSON      json.RawMessage `json:"json,omitempty"`
	Text      string          `json:"text,omitempty"`
	Base64    []byte          `json:"base64,omitempty"`
	Size      int             `json:"size" doc:"bytes of all of it, unpacked"`
	Unpacked  string          `json:"unpacked,omitempty" doc:"the compression that it came in"`
	Truncated bool            `json:"truncated" doc:"only the beginning is here: 64 KiB, as text or base64"`
}

// WholeBody is the query parameter for getting all of a body.
type WholeBody struct {
	Full bool `query:"full" doc:"all of the body, not only its first 64 KiB"`
}

// Resolve accepts ?full without a value as true.
func (w *WholeBody) Resolve(ctx huma.Context) []error {
	at := ctx.URL()
	if query := at.Query(); query.Has("full") && query.Get("full") == "" {
		w.Full = true
	}
	return nil
}

// ContentOf converts a body.
func ContentOf(body []byte, encoding string, full bool) Content {
	c := Content{}
	if plain, ok := unpack(body, encoding); ok {
		body, c.Unpacked = plain, encoding
	}
	c.Size = len(body)
	if !full && len(body) > maxContent {
		body, c.Truncated = body[:maxContent], true
		for cut := range utf8.UTFMax { // a character may have been cut
			if whole := body[:len(body)-cut]; utf8.Valid(whole) {
				body = whole
				break
			}
		}
	}
	switch {
	case len(body) == 0:
	case !c.Truncated && json.Valid(body):
		c.JSON = body
	case utf8.Valid(body) && bytes.IndexByte(body, 0) < 0:
		c.Text = string(body)
	default:
		c.Base64 = body
	}
	return c
}

func unpack(body []byte, encoding string) ([]byte, bool) {
	if !strings.EqualFold(encoding, "zstd") {
		return nil, false
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxUnpacked))
	if err != nil {
		return nil, false
	}
	defer decoder.Close()
	plain, err := decoder.DecodeAll(body, nil)
	return plain, err == nil
}
