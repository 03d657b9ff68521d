package main

import (
	"fmt"
	"maps"
	"reflect"
	"strings"

	"github.com/tranchehq/tranche/workqueue"
)

// settings is the table of a step's settings. What holds without one stands in parentheses at the end of its words.
func settings(string) (string, error) {
	var b strings.Builder
	b.WriteString("\n| plan | flag | default | meaning |\n|---|---|---|---|\n")
	flags := maps.Collect(workqueue.Flags())
	of := reflect.TypeFor[workqueue.StepSettings]()
	for field := range reflect.TypeFor[workqueue.StepOverrides]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		words, otherwise, _ := strings.Cut(strings.TrimSuffix(field.Tag.Get("doc"), ")"), " (")
		setting, _ := of.FieldByName(field.Name)
		flag := "`" + flags[name] + "`"
		if field.Type.Kind() == reflect.Slice {
			flag += " …"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s%s |\n", name, flag, otherwise, words, bounds(setting.Tag))
	}
	b.WriteString("\n")
	return b.String(), nil
}

func bounds(tag reflect.StructTag) string {
	least, most, bounded := strings.Cut(tag.Get("bounds"), " ")
	if !bounded {
		return ""
	}
	text := fmt.Sprintf("; %s to %s", least, most)
	if zero := tag.Get("zero"); zero != "" {
		text += ", 0 " + zero
	}
	return text
}
