package api

import (
	"encoding/json"
	"io"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// schemaOf describes a type by its place among the components.
func schemaOf[T any](api huma.API) *huma.Schema {
	return api.OpenAPI().Components.Schemas.Schema(typeOf[T](), true, "")
}

// sendJSON writes a document as huma does: a line, with <, > and & as they are.
func sendJSON(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(document)
}

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }
