package api

import (
	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"
)

// APIVersion is the version of the API: the last part of Prefix, and that of its OpenAPI document. What clients may
// rely on changes with it and with nothing else: within a version members, operations and parameters are added only.
const APIVersion = "v1"

// Document returns the OpenAPI document that every server of this version serves. Who changes it is its owner.
func Document() *huma.OpenAPI {
	s := &Server{engine: struct{ Engine }{}, log: zap.NewNop()}
	s.routes()
	return s.document
}
