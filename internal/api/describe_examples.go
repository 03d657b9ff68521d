package api

import "github.com/danielgtaylor/huma/v2"

// describeExamples gives bodies examples.
func describeExamples(*huma.OpenAPI) {}
