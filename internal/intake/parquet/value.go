package parquet

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/internal/intake/jsonvalue"
)

// Logical types, as the footer numbers them.
const (
	logicalString    = 1
	logicalMap       = 2
	logicalList      = 3
	logicalEnum      = 4
	logicalDecimal   = 5
	logicalDate      = 6
	logicalTime      = 7
	logicalTimestamp = 8
	logicalInteger   = 10
	logicalJSON      = 12
	logicalUUID      = 14
	logicalFloat16   = 15
)

// modernize turns what older writers say of a type into what newer ones do.
func (e *schemaElement) modernize() {
	if e.logical != 0 || e.converted < 0 {
		return
	}
	switch e.converted {
	case 0:
		e.logical = logicalString
	case 1, 2:
		e.logical = logicalMap
	case 3:
		e.logical = logicalList
	case 4:
		e.logical = logicalEnum
	case 5:
		e.logical = logicalDecimal
	case 6:
		e.logical = logicalDate
	case 7, 8:
		e.logical, e.unit = logicalTime, e.converted-6
	case 9, 10:
		e.logical, e.unit, e.utc = logicalTimestamp, e.converted-8, true
	case 11, 12, 13, 14:
		e.logical, e.signed = logicalInteger, false
	case 15, 16, 17, 18:
		e.logical = logicalInteger
	case 19:
		e.logical = logicalJSON
	}
}

// append writes a value as JSON; nil when it cannot stand in a payload.
func (e *schemaElement) append(dst []byte, v value, depth int) []byte {
	switch e.physical {
	case typeBoolean:
		return strconv.AppendBool(dst, v.n != 0)
	case typeInt32, typeInt64:
		return e.appendInt(dst, v.n)
	case typeFloat:
		return appendFloat(dst, float64(math.Float32frombits(uint32(v.n))), 32)
	case typeDouble:
		return appendFloat(dst, math.Float64frombits(uint64(v.n)), 64)
	case typeInt96:
		nanos := int64(binary.LittleEndian.Uint64(v.b))
		day := int64(binary.LittleEndian.Uint32(v.b[8:]))
		const julianEpoch = 2_440_588
		return appendTime(dst, time.Unix((day-julianEpoch)*86_400, nanos).UTC(), true)
	default:
		return e.appendBytes(dst, v.b, depth)
	}
}

func (e *schemaElement) appendInt(dst []byte, n int64) []byte {
	unit := map[int]time.Duration{1: time.Millisecond, 2: time.Microsecond, 3: time.Nanosecond}[e.unit]
	switch e.logical {
	case logicalDate:
		return append(time.Unix(n*86_400, 0).UTC().AppendFormat(append(dst, '"'), time.DateOnly), '"')
	case logicalTime:
		at := time.Unix(0, 0).UTC().Add(time.Duration(n) * unit)
		return append(at.AppendFormat(append(dst, '"'), "15:04:05.999999999"), '"')
	case logicalTimestamp:
		switch e.unit {
		case 1:
			return appendTime(dst, time.UnixMilli(n).UTC(), e.utc)
		case 2:
			return appendTime(dst, time.UnixMicro(n).UTC(), e.utc)
		default:
			return appendTime(dst, time.Unix(0, n).UTC(), e.utc)
		}
	case logicalDecimal:
		return e.appendDecimal(dst, big.NewInt(n))
	}
	if e.signed {
		return strconv.AppendInt(dst, n, 10)
	}
	if e.physical == typeInt32 {
		return strconv.AppendUint(dst, uint64(uint32(n)), 10)
	}
	return strconv.AppendUint(dst, uint64(n), 10)
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
func (e *schemaElement) appendDecimal(dst []byte, n *big.Int) []byte {
	digits := new(big.Int).Abs(n).String()
	if scale := min(max(e.scale, 0), 1000); scale > 0 {
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

func (e *schemaElement) appendBytes(dst, b []byte, depth int) []byte {
	switch {
	case e.logical == logicalString, e.logical == logicalEnum:
		return jsonvalue.AppendText(dst, b, depth)
	case e.logical == logicalJSON:
		if !jsontext.Value(b).IsValid() {
			return nil
		}
		return jsonvalue.AppendJSON(dst, b, depth)
	case e.logical == logicalDecimal && len(b) <= 1024:
		n := new(big.Int).SetBytes(b)
		if len(b) > 0 && b[0] >= 0x80 { // two's complement
			n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
		}
		return e.appendDecimal(dst, n)
	case e.logical == logicalUUID && len(b) == 16:
		text := hex.EncodeToString(b)
		return append(dst, `"`+text[:8]+"-"+text[8:12]+"-"+text[12:16]+"-"+text[16:20]+"-"+text[20:]+`"`...)
	case e.logical == logicalFloat16 && len(b) == 2:
		return appendFloat(dst, float16(binary.LittleEndian.Uint16(b)), 32)
	default:
		return append(base64.StdEncoding.AppendEncode(append(dst, '"'), b), '"')
	}
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
