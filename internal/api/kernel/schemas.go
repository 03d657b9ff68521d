package kernel

import (
	"encoding/json"
	"io"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// SchemaOf describes a type by its place among the components.
func SchemaOf[T any](api huma.API) *huma.Schema {
	return api.OpenAPI().Components.Schemas.Schema(TypeOf[T](), true, "")
}

// SendJSON writes a document as huma does: a line, with <, > and & as they are.
func SendJSON(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(document)
}

// TypeOf is reflect.TypeFor, for schemas.
func TypeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }
