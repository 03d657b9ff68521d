package api

import (
	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/api/runs"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue/database"
)

// APIVersion is the version of the API: the last part of Prefix, and that of its OpenAPI document. What clients may
// rely on changes with it and with nothing else: within a version members, operations and parameters are added only.
const APIVersion = "v1"

// Document returns the OpenAPI document that every server of this version serves. Who changes it is its owner.
func Document() *huma.OpenAPI {
	store, node, config := database.New(nil), Node{Controls: struct{ runs.Controls }{}, Redo: struct{ runs.Redo }{},
		Collectors: struct{ CollectorEngine }{}}, Config{Log: zap.NewNop()}
	s := &Server{kernel: kernel.New(store, node, nil, config.kernel(0)), config: config}
	if err := s.furnish(&node); err != nil {
		panic(err) // a mistake in this package
	}
	s.routes()
	return s.document
}
