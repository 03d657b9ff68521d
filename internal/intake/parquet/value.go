package parquet

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/format"

	"github.com/tranchehq/tranche/internal/intake/jsonvalue"
)

// logicalOf is what a column is, also of a file whose writer says it in the older way.
func logicalOf(e *format.SchemaElement) format.LogicalTypeValue {
	if e.LogicalType.Value != nil || !e.ConvertedType.Valid {
		return e.LogicalType.Value
	}
	ms, us := format.TimeUnit{Value: &format.MilliSeconds{}}, format.TimeUnit{Value: &format.MicroSeconds{}}
	switch e.ConvertedType.V {
	case deprecated.UTF8:
		return &format.StringType{}
	case deprecated.Map, deprecated.MapKeyValue:
		return &format.MapType{}
	case deprecated.List:
		return &format.ListType{}
	case deprecated.Enum:
		return &format.EnumType{}
	case deprecated.Decimal:
		return &format.DecimalType{Scale: e.Scale.V}
	case deprecated.Date:
		return &format.DateType{}
	case deprecated.TimeMillis:
		return &format.TimeType{Unit: ms}
	case deprecated.TimeMicros:
		return &format.TimeType{Unit: us}
	case deprecated.TimestampMillis:
		return &format.TimestampType{Unit: ms, IsAdjustedToUTC: true}
	case deprecated.TimestampMicros:
		return &format.TimestampType{Unit: us, IsAdjustedToUTC: true}
	case deprecated.Uint8, deprecated.Uint16, deprecated.Uint32, deprecated.Uint64:
		return &format.IntType{}
	case deprecated.Json:
		return &format.JsonType{}
	}
	return nil
}

// append writes a value as JSON; nil when it cannot stand in a payload.
func (n *node) append(dst []byte, v value, depth int) []byte {
	switch n.Type.V {
	case format.Boolean:
		return strconv.AppendBool(dst, v.n != 0)
	case format.Int32, format.Int64:
		return n.appendInt(dst, v.n)
	case format.Float:
		return appendFloat(dst, float64(math.Float32frombits(uint32(v.n))), 32)
	case format.Double:
		return appendFloat(dst, math.Float64frombits(uint64(v.n)), 64)
	case format.Int96:
		nanos := int64(binary.LittleEndian.Uint64(v.b))
		day := int64(binary.LittleEndian.Uint32(v.b[8:]))
		const julianEpoch = 2_440_588
		return appendTime(dst, time.Unix((day-julianEpoch)*86_400, nanos).UTC(), true)
	default:
		return n.appendBytes(dst, v.b, depth)
	}
}

func (n *node) appendInt(dst []byte, v int64) []byte {
	switch is := n.logical.(type) {
	case *format.DateType:
		return append(time.Unix(v*86_400, 0).UTC().AppendFormat(append(dst, '"'), time.DateOnly), '"')
	case *format.TimeType:
		at := time.Unix(0, 0).UTC().Add(time.Duration(v) * unitOf(is.Unit))
		return append(at.AppendFormat(append(dst, '"'), "15:04:05.999999999"), '"')
	case *format.TimestampType:
		switch unitOf(is.Unit) {
		case time.Millisecond:
			return appendTime(dst, time.UnixMilli(v).UTC(), is.IsAdjustedToUTC)
		case time.Microsecond:
			return appendTime(dst, time.UnixMicro(v).UTC(), is.IsAdjustedToUTC)
		default:
			return appendTime(dst, time.Unix(0, v).UTC(), is.IsAdjustedToUTC)
		}
	case *format.DecimalType:
		return appendDecimal(dst, big.NewInt(v), is.Scale)
	case *format.IntType:
		if !is.IsSigned && n.Type.V == format.Int32 {
			return strconv.AppendUint(dst, uint64(uint32(v)), 10)
		}
		if !is.IsSigned {
			return strconv.AppendUint(dst, uint64(v), 10)
		}
	}
	return strconv.AppendInt(dst, v, 10)
}

func unitOf(unit format.TimeUnit) time.Duration {
	if unit.Value == nil {
		return time.Nanosecond
	}
	return unit.Value.Duration()
}

func appendTime(dst []byte, t time.Time, utc bool) []byte {
	format := "2006-01-02T15:04:05.999999999"
	if utc {
		format += "Z"
	}
	return append(t.AppendFormat(append(dst, '"'), format), '"')
}

// appendFloat writes NaN and the infinities, which JSON does not have, as strings.
func appendFloat(dst []byte, f float64, size int) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(strconv.AppendFloat(append(dst, '"'), f, 'g', -1, size), '"')
	}
	return strconv.AppendFloat(dst, f, 'g', -1, size)
}

// appendDecimal writes the digits exactly, as a string: a JSON reader would round a number.
func appendDecimal(dst []byte, n *big.Int, scale int32) []byte {
	digits := new(big.Int).Abs(n).String()
	if scale := int(min(max(scale, 0), 1000)); scale > 0 {
		if missing := scale + 1 - len(digits); missing > 0 {
			digits = strings.Repeat("0", missing) + digits
		}
		digits = digits[:len(digits)-scale] + "." + digits[len(digits)-scale:]
	}
	dst = append(dst, '"')
	if n.Sign() < 0 {
		dst = append(dst, '-')
	}
	return append(append(dst, digits...), '"')
}

func (n *node) appendBytes(dst, b []byte, depth int) []byte {
	switch is := n.logical.(type) {
	case *format.StringType, *format.EnumType:
		return jsonvalue.AppendText(dst, b, depth)
	case *format.JsonType:
		return jsonvalue.AppendJSON(dst, b, depth)
	case *format.DecimalType:
		if len(b) > 1024 {
			break
		}
		n := new(big.Int).SetBytes(b)
		if len(b) > 0 && b[0] >= 0x80 { // two's complement
			n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
		}
		return appendDecimal(dst, n, is.Scale)
	case *format.UUIDType:
		if id, err := uuid.FromBytes(b); err == nil {
			return append(dst, `"`+id.String()+`"`...)
		}
	case *format.Float16Type:
		if len(b) == 2 {
			return appendFloat(dst, float16(binary.LittleEndian.Uint16(b)), 32)
		}
	}
	return append(base64.StdEncoding.AppendEncode(append(dst, '"'), b), '"')
}

func float16(bits uint16) float64 {
	sign, exponent, fraction := 1.0, int(bits>>10&31), float64(bits&1023)/1024
	if bits>>15 == 1 {
		sign = -1
	}
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -14)
	case 31:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	default:
		return sign * math.Ldexp(1+fraction, exponent-15)
	}
}
