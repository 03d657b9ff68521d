package intake

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/internal/intake/jsonvalue"
)

// converter appends a value, as PostgreSQL writes it as text, as JSON; nil when it cannot stand in a payload.
type converter func(dst, value []byte, depth int) []byte

// converterOf says how values of a type become JSON: whole numbers and floats are numbers, booleans are booleans, JSON
// is taken as it is, binary data is base64, and times are as in RFC 3339, in UTC if they have a zone. Everything else
// is a string as PostgreSQL writes it; so are numerics, which a JSON reader would round. Arrays of these are arrays.
func converterOf(oid uint32) converter {
	switch oid {
	case pgtype.BoolOID:
		return appendBool
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.OIDOID, pgtype.Float4OID, pgtype.Float8OID:
		return appendNumber
	case pgtype.JSONOID, pgtype.JSONBOID:
		return jsonvalue.AppendJSON
	case pgtype.ByteaOID:
		return appendBytea
	case pgtype.TimestampOID, pgtype.TimestamptzOID:
		return appendTimestamp
	case pgtype.JSONArrayOID, pgtype.JSONBArrayOID, pgtype.ByteaArrayOID, pgtype.BoolArrayOID, pgtype.Int2ArrayOID,
		pgtype.Int4ArrayOID, pgtype.Int8ArrayOID, pgtype.Float4ArrayOID, pgtype.Float8ArrayOID, pgtype.NumericArrayOID,
		pgtype.TextArrayOID, pgtype.VarcharArrayOID, pgtype.TimestampArrayOID, pgtype.TimestamptzArrayOID,
		pgtype.DateArrayOID, pgtype.UUIDArrayOID:
		return arrayOf(converterOf(elementOf(oid)))
	default:
		return jsonvalue.AppendText
	}
}

func elementOf(oid uint32) uint32 {
	return map[uint32]uint32{
		pgtype.JSONArrayOID: pgtype.JSONOID, pgtype.JSONBArrayOID: pgtype.JSONBOID, pgtype.ByteaArrayOID: pgtype.ByteaOID,
		pgtype.BoolArrayOID: pgtype.BoolOID, pgtype.Int2ArrayOID: pgtype.Int2OID, pgtype.Int4ArrayOID: pgtype.Int4OID,
		pgtype.Int8ArrayOID: pgtype.Int8OID, pgtype.Float4ArrayOID: pgtype.Float4OID,
		pgtype.Float8ArrayOID: pgtype.Float8OID, pgtype.TimestampArrayOID: pgtype.TimestampOID,
		pgtype.TimestamptzArrayOID: pgtype.TimestamptzOID,
	}[oid]
}

func appendBool(dst, value []byte, _ int) []byte {
	if string(value) == "t" {
		return append(dst, "true"...)
	}
	return append(dst, "false"...)
}

// appendNumber writes NaN and the infinities, which JSON does not have, as strings.
func appendNumber(dst, value []byte, depth int) []byte {
	if bytes.ContainsAny(value, "NI") {
		return jsonvalue.AppendText(dst, value, depth)
	}
	return append(dst, value...)
}

func appendBytea(dst, value []byte, _ int) []byte {
	raw := make([]byte, hex.DecodedLen(len(value)))
	n, err := hex.Decode(raw, bytes.TrimPrefix(value, []byte(`\x`)))
	if err != nil {
		return nil
	}
	return append(base64.StdEncoding.AppendEncode(append(dst, '"'), raw[:n]), '"')
}

// appendTimestamp writes infinities and times before our era as PostgreSQL does.
func appendTimestamp(dst, value []byte, depth int) []byte {
	text := string(value)
	if len(text) > len("2006-01-02") && text[10] == ' ' && !strings.HasSuffix(text, "BC") {
		text = text[:10] + "T" + text[11:]
		if rest, utc := strings.CutSuffix(text, "+00"); utc {
			text = rest + "Z"
		}
	}
	return jsonvalue.AppendText(dst, []byte(text), depth)
}

// arrayOf writes an array literal of PostgreSQL, like {1,NULL,"a,b"} or {{1},{2}}.
func arrayOf(element converter) converter {
	return func(dst, value []byte, depth int) []byte {
		if at := bytes.IndexByte(value, '{'); at > 0 { // [0:1]={…}: bounds that are not from 1
			value = value[at:]
		}
		var item []byte
		for i := 0; i < len(value) && dst != nil; {
			switch c := value[i]; c {
			case '{':
				dst, i = append(dst, '['), i+1
			case '}':
				dst, i = append(dst, ']'), i+1
			case ',':
				dst, i = append(dst, ','), i+1
			default:
				quoted := c == '"'
				item, i = arrayItem(item[:0], value, i)
				if !quoted && string(item) == "NULL" {
					dst = append(dst, "null"...)
				} else {
					dst = element(dst, item, depth-1)
				}
			}
		}
		return dst
	}
}

// arrayItem reads the element of a literal that starts at i, and returns where it ends.
func arrayItem(item, value []byte, i int) ([]byte, int) {
	quoted := value[i] == '"'
	if quoted {
		i++
	}
	for ; i < len(value); i++ {
		switch c := value[i]; {
		case c == '\\' && i+1 < len(value):
			i++
			item = append(item, value[i])
		case quoted && c == '"':
			return item, i + 1
		case !quoted && (c == ',' || c == '}'):
			return item, i
		default:
			item = append(item, c)
		}
	}
	return item, i
}
