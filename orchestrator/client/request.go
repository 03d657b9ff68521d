package client

import (
	"fmt"
	"io"
	"net/url"
	"reflect"
	"strings"
	"time"
)

type request struct {
	operation, method, path string

	query       url.Values
	document    any // the body, as JSON
	contentType string
	body        io.Reader // the body, unchanged
}

// add adds a parameter to the query, unless it is zero. A list becomes one value, or one each.
func (r *request) add(name string, value any, each bool) {
	v := reflect.ValueOf(value)
	if v.IsZero() {
		return
	}
	if r.query == nil {
		r.query = url.Values{}
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Slice {
		r.query.Set(name, text(v.Interface()))
		return
	}
	texts := make([]string, 0, v.Len())
	for i := range v.Len() {
		texts = append(texts, text(v.Index(i).Interface()))
	}
	if each {
		r.query[name] = texts
	} else {
		r.query.Set(name, strings.Join(texts, ","))
	}
}

func text(value any) string {
	if t, ok := value.(time.Time); ok {
		return t.Format(time.RFC3339Nano)
	}
	return fmt.Sprint(value)
}

func (r *request) target() string {
	if len(r.query) == 0 {
		return r.path
	}
	return r.path + "?" + r.query.Encode()
}

func path(format string, names ...any) string {
	segments := make([]any, 0, len(names))
	for _, name := range names {
		segments = append(segments, segment(text(name)))
	}
	return fmt.Sprintf(format, segments...)
}

// segment escapes a name for a path. One of only dots would mean a parent directory.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}
