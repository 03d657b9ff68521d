package gather

import (
	"encoding/json"
	"time"

	"github.com/tranchehq/tranche/gather/strictyaml"
)

// readHTTP reads a step's settings of kind http.
func readHTTP(into **HTTP) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		h := defaultHTTP()
		err := v.Fields([]strictyaml.Field{
			{Name: "url", Read: text(&h.URL)},
			{Name: "method", Read: text(&h.Method)},
			{Name: "headers", Read: headers(&h.Headers)},
			{Name: "body", Read: strictyaml.JSON((*json.RawMessage)(&h.Body))},
			{Name: "accept", Read: text(&h.Accept)},
			{Name: "many", Read: strictyaml.Truth(&h.Many)},
			{Name: "concurrency", Read: number(&h.Concurrency)},
			{Name: "timeout", Read: duration((*time.Duration)(&h.Timeout))},
			{Name: "max_bytes", Read: size(&h.MaxBytes)},
			{Name: "redirects", Read: number(&h.Redirects)},
			{Name: "response", Read: func(v strictyaml.Value) error {
				return v.Fields([]strictyaml.Field{
					{Name: "items", Read: text(&h.Response.Items)},
					{Name: "key", Read: text(&h.Response.Key)},
					{Name: "value", Read: text(&h.Response.Value)},
				}...)
			}},
		}...)
		if !v.Given("method") {
			h.Method = h.defaultMethod()
		}
		*into = h
		return err
	}
}

// ReadSQL reads the settings of a query: those of a step of kind sql.
func ReadSQL(into **SQL) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		q := defaultSQL()
		*into = q
		return v.Fields([]strictyaml.Field{
			{Name: "source", Read: text(&q.Source)},
			{Name: "query", Read: block(&q.Query)},
			{Name: "key", Read: text(&q.Key)},
			{Name: "value", Read: text(&q.Value)},
			{Name: "content_type", Read: text(&q.ContentType)},
			{Name: "rows", Read: text(&q.Rows)},
			{Name: "timeout", Read: duration((*time.Duration)(&q.Timeout))},
			{Name: "max_rows", Read: number(&q.MaxRows)},
			{Name: "max_bytes", Read: size(&q.MaxBytes)},
		}...)
	}
}

// block reads text, which may be a block of several lines.
func block(into *string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		if said, ok := v.Block(); ok {
			*into = said
			return nil
		}
		return text(into)(v)
	}
}

// headers reads texts by names of the plan's own.
func headers(into *map[string]string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		*into = map[string]string{}
		const want = "headers by their names, like Authorization: \"Bearer {secret.NAME}\""
		return v.Entries(want, func(name string, v strictyaml.Value) error {
			var said string
			err := text(&said)(v)
			(*into)[name] = said
			return err
		})
	}
}
