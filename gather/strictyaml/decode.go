package strictyaml

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// Reader is implemented by values with custom reading.
type Reader interface{ ReadYAML(v Value) error }

// Decode decodes a value into a pointer. Struct fields have their JSON names, and fields of embedded structs are
// promoted; missing ones stay unchanged. A [Reader] or [encoding.TextUnmarshaler] reads itself. Further tags restrict
// values:
//
//	enum:"a,b"         the allowed words of a text, or of each text in a list
//	min:"1" max:"10"   bounds of a number, a time (10ms), a size (1KiB), the bytes of a text, or the number of entries
//	                   of a list or group
//	want:"hosts"       the name of a text, or of a group with free names, in errors
//	doc:"what it is"   for [Schema]
func (v Value) Decode(into any) error { return v.decode(reflect.ValueOf(into).Elem(), "") }

// Into returns a reader that decodes into a pointer, as for a struct field with that tag.
func Into(into any, tag ...reflect.StructTag) func(Value) error {
	return func(v Value) error { return v.decode(reflect.ValueOf(into).Elem(), append(tag, "")[0]) }
}

func (v Value) decode(into reflect.Value, tag reflect.StructTag) error {
	v.describe(into, tag)
	switch to := into.Addr().Interface().(type) {
	case Reader:
		return to.ReadYAML(v)
	case *json.RawMessage:
		tree, err := v.tree()
		if err == nil {
			*to, err = json.Marshal(tree)
		}
		return err
	case encoding.TextUnmarshaler:
		return v.unmarshal(to, into, tag)
	}
	switch into.Kind() {
	case reflect.Pointer:
		if into.IsNil() {
			into.Set(reflect.New(into.Type().Elem()))
		}
		return v.decode(into.Elem(), tag)
	case reflect.Struct:
		return v.Fields(fieldsOf(into)...)
	case reflect.Slice:
		return v.slice(into, tag)
	case reflect.Map:
		return v.group(into, tag)
	case reflect.Int:
		return v.number(into, tag)
	case reflect.String:
		return v.text(into, tag)
	case reflect.Bool:
		node, ok := v.node.(*ast.BoolNode)
		if !ok {
			return v.Wrong("true or false")
		}
		into.SetBool(node.Value)
		return nil
	default:
		panic(fmt.Sprintf("strictyaml: no YAML is read as a %s", into.Type()))
	}
}

// FieldsOf returns the fields of the struct to which into points, as Decode reads them.
func FieldsOf(into any) []Field { return fieldsOf(reflect.ValueOf(into).Elem()) }

func fieldsOf(of reflect.Value) (fields []Field) {
	own := map[string]bool{}
	named := func(i int) (name string, embedded bool) {
		f := of.Type().Field(i)
		name, _, _ = strings.Cut(f.Tag.Get("json"), ",")
		return name, f.Anonymous && name == ""
	}
	for i := range of.NumField() {
		if name, embedded := named(i); !embedded {
			own[name] = true
		}
	}
	for i := range of.NumField() {
		name, embedded := named(i)
		switch field := of.Field(i); {
		case embedded:
			for _, f := range fieldsOf(field) {
				if !own[f.Name] {
					fields = append(fields, f)
				}
			}
		case name != "" && name != "-":
			tag := of.Type().Field(i).Tag
			fields = append(fields, Field{name, func(v Value) error { return v.decode(field, tag) }, tag.Get("doc")})
		}
	}
	return fields
}

// unmarshal lets a type parse a text; its error says what is allowed. Bounds are parsed the same way.
func (v Value) unmarshal(to encoding.TextUnmarshaler, into reflect.Value, tag reflect.StructTag) error {
	text, _ := v.Plain()
	_, quoted := v.Text()
	if _, err := strconv.ParseFloat(text, 64); quoted && err == nil {
		text = "" // a quoted text is not a number
	}
	err := to.UnmarshalText([]byte(text))
	least, bounded := tag.Lookup("min")
	if !bounded {
		if err != nil {
			return v.Fail("%v; this is %s", err, v.Kind())
		}
		return nil
	}
	most := tag.Get("max")
	of := func(text string) (n int64, err error) {
		bound := reflect.New(into.Type())
		to, _ := reflect.TypeAssert[encoding.TextUnmarshaler](bound) // same type as into
		err = to.UnmarshalText([]byte(text))
		return bound.Elem().Int(), err
	}
	low, err1 := of(least)
	high, err2 := of(most)
	_, want := of("")
	if err1 != nil || err2 != nil || want == nil {
		panic(fmt.Sprintf("strictyaml: %s and %s are no bounds of a %s", least, most, into.Type()))
	}
	if n := into.Int(); err != nil || n < low || n > high {
		return v.Fail("%v, within %s to %s; this is %s", want, least, most, v.Kind())
	}
	return nil
}

func bounds(tag reflect.StructTag) (least, most int, bounded bool) {
	least, _ = strconv.Atoi(tag.Get("min"))
	most, err := strconv.Atoi(tag.Get("max"))
	return least, most, err == nil
}

// number accepts decimal digits only: YAML also reads 0x10, 010 and 1_000.
func (v Value) number(into reflect.Value, tag reflect.StructTag) error {
	least, most, bounded := bounds(tag)
	want := "a whole number like 500"
	if bounded {
		want = fmt.Sprintf("a whole number within %d to %d", least, most)
	}
	node, ok := v.node.(*ast.IntegerNode)
	if !ok {
		return v.Wrong(want)
	}
	text := node.GetToken().Value
	n, err := strconv.Atoi(text)
	if err != nil || strconv.Itoa(n) != text || bounded && (n < least || n > most) {
		return v.Wrong(want)
	}
	into.SetInt(int64(n))
	return nil
}

func (v Value) text(into reflect.Value, tag reflect.StructTag) error {
	if words, limited := tag.Lookup("enum"); limited {
		said, _ := v.Plain()
		for word := range strings.SplitSeq(words, ",") {
			if word == said {
				into.SetString(word)
				return nil
			}
		}
		return v.Wrong("one of " + strings.ReplaceAll(words, ",", ", "))
	}
	text, ok := v.Text()
	if !ok {
		text, ok = v.Block()
	}
	_, most, bounded := bounds(tag)
	switch {
	case !ok:
		return v.Wrong(cmp.Or(tag.Get("want"), "text; put it in quotes if it looks like something else"))
	case text == "":
		return v.Fail("want text; this is an empty one")
	case bounded && len(text) > most:
		return v.Fail("it has %d bytes, and at most %d are allowed", len(text), most)
	}
	into.SetString(text)
	return nil
}

func (v Value) slice(into reflect.Value, tag reflect.StructTag) error {
	into.SetZero()
	least, most, bounded := bounds(tag)
	words := reflect.StructTag("")
	if enum, limited := tag.Lookup("enum"); limited {
		words = reflect.StructTag(`enum:"` + enum + `"`)
	}
	err := v.List(func(entry Value) error {
		one := reflect.New(into.Type().Elem()).Elem()
		err := entry.decode(one, words)
		into.Set(reflect.Append(into, one))
		return err
	})
	switch n := into.Len(); {
	case err != nil:
		return err
	case n < least:
		return v.Fail("the list is empty; put the texts there, or leave it out")
	case bounded && n > most:
		return v.Fail("there are %d, and at most %d are allowed", n, most)
	}
	return nil
}

// group reads a group with free names. Its texts may look like other types.
func (v Value) group(into reflect.Value, tag reflect.StructTag) error {
	into.Set(reflect.MakeMap(into.Type()))
	err := v.Entries(cmp.Or(tag.Get("want"), "names and values"), func(name string, entry Value) error {
		one := reflect.New(into.Type().Elem()).Elem()
		if one.Kind() != reflect.String {
			err := entry.decode(one, "")
			into.SetMapIndex(reflect.ValueOf(name), one)
			return err
		}
		text, ok := entry.Plain()
		if !ok {
			return entry.Wrong("a value: text, a number, true or false")
		}
		one.SetString(text)
		into.SetMapIndex(reflect.ValueOf(name), one)
		return nil
	})
	if _, most, bounded := bounds(tag); err == nil && bounded && into.Len() > most {
		err = v.Fail("there are %d, and at most %d are allowed", into.Len(), most)
	}
	return err
}
