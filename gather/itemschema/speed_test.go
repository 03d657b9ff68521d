package itemschema_test

import (
	"testing"

	"github.com/tranchehq/tranche/gather/itemschema"
)

// BenchmarkCheck checks one row of five fields, with everything that schemas of rows mostly have.
func BenchmarkCheck(b *testing.B) {
	item := []byte(`{"id":"CUST-0012345","name":"Ann Example","kind":"giro","opened":"2024-12-31","balance":12345.25}`)
	for name, fields := range map[string]string{
		"types":   `"id":{"type":"string"},"name":{"type":"string"},"kind":{"type":"string"},"balance":{"type":"number"}`,
		"bounds":  `"name":{"minLength":1,"maxLength":70},"balance":{"type":"number","minimum":0,"maximum":1e7}`,
		"enum":    `"kind":{"enum":["giro","savings"]}`,
		"pattern": `"id":{"type":"string","pattern":"^CUST-[0-9]+$"}`,
		"date":    `"opened":{"type":"string","format":"date"}`,
	} {
		schema, err := itemschema.Compile([]byte(`{"type":"object","required":["id"],"properties":{` + fields + `}}`))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			checker := schema.NewChecker()
			for b.Loop() {
				if faults := checker.Check(item); faults != nil {
					b.Fatal(faults)
				}
			}
		})
	}
}
