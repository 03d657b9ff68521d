package dashboard_test

import (
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// color is linear red, green and blue, 0 to 1.
type color [3]float64

// themes reads the tokens that are colors: light, dark as the system has it, and dark as it was chosen.
func themes(t *testing.T) (light, system, chosen map[string]color) {
	t.Helper()
	css, err := os.ReadFile("static/style/base.css")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile(`(?s):root[^{]*\{(.*?)\}`).FindAllSubmatch(css, -1)
	if len(blocks) < 4 {
		t.Fatalf("found %d blocks of tokens", len(blocks))
	}
	read := func(block []byte) map[string]color {
		tokens := map[string]color{}
		for _, m := range regexp.MustCompile(`--([a-z0-9-]+): #([0-9a-f]{6});`).FindAllSubmatch(block, -1) {
			var c color
			for i := range c {
				v, err := strconv.ParseUint(string(m[2][2*i:2*i+2]), 16, 8)
				if err != nil {
					t.Fatal(err)
				}
				c[i] = linear(float64(v) / 255)
			}
			tokens[string(m[1])] = c
		}
		return tokens
	}
	return read(blocks[1][1]), read(blocks[2][1]), read(blocks[3][1])
}

func linear(v float64) float64 {
	if v <= 0.04045 {
		return v / 12.92
	}
	return math.Pow((v+0.055)/1.055, 2.4)
}

func TestDarkIsDarkHoweverItCame(t *testing.T) {
	t.Parallel()
	light, system, chosen := themes(t)
	if !maps.Equal(system, chosen) {
		t.Error("the dark theme of the system is not the one that is chosen")
	}
	for name := range light {
		if _, ok := system[name]; !ok {
			t.Errorf("--%s has no dark value", name)
		}
	}
}

func contrast(a, b color) float64 {
	bright := func(c color) float64 { return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2] + 0.05 }
	x, y := bright(a), bright(b)
	return max(x, y) / min(x, y)
}

// eyes are what those see who have all cones, or lack one kind (Machado, Oliveira and Fernandes 2009, severity 1).
func eyes() map[string][3]color {
	return map[string][3]color{
		"all cones": {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
		"no red":    {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
		"no green":  {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
		"no blue":   {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
	}
}

// The nine states of items must be told apart by everybody. The distance is that of Oklab, where 0.02 can just be seen
// side by side.
func TestStatesAreToldApart(t *testing.T) {
	t.Parallel()
	const least = 0.11
	light, dark, _ := themes(t)
	for theme, tokens := range map[string]map[string]color{"light": light, "dark": dark} {
		for eye, matrix := range eyes() {
			closest, pair := math.Inf(1), ""
			for i := range 9 {
				for j := range i {
					d := distance(seen(matrix, tokens[fmt.Sprint("state-", i)]), seen(matrix, tokens[fmt.Sprint("state-", j)]))
					if d < closest {
						closest, pair = d, fmt.Sprintf("--state-%d and --state-%d", j, i)
					}
				}
			}
			if closest < least {
				t.Errorf("%s, %s: %s are %.3f apart, want %.2f", theme, eye, pair, closest, least)
			}
			t.Logf("%s, %s: the closest are %s, %.3f apart", theme, eye, pair, closest)
		}
	}
}

// What must be told apart at a glance, of whatever size, has three times the brightness of the other, whatever cones
// one has: what failed or is held against what is done, and what is over against what is to come.
func TestStatesStandOut(t *testing.T) {
	t.Parallel()
	const waiting, held, ready, done, failed = 0, 1, 2, 5, 6
	light, dark, _ := themes(t)
	for theme, tokens := range map[string]map[string]color{"light": light, "dark": dark} {
		for eye, matrix := range eyes() {
			for _, pair := range [][2]int{{failed, done}, {held, done}, {failed, waiting}, {failed, ready}, {done, waiting}} {
				got := contrast(seen(matrix, tokens[fmt.Sprint("state-", pair[0])]),
					seen(matrix, tokens[fmt.Sprint("state-", pair[1])]))
				if got < 3 {
					t.Errorf("%s, %s: --state-%d on --state-%d has %.2f, want 3", theme, eye, pair[0], pair[1], got)
				}
			}
		}
	}
}

func seen(matrix [3]color, c color) (out color) {
	for i, row := range matrix {
		out[i] = min(1, max(0, row[0]*c[0]+row[1]*c[1]+row[2]*c[2]))
	}
	return out
}

func distance(a, b color) float64 {
	x, y := oklab(a), oklab(b)
	return math.Sqrt((x[0]-y[0])*(x[0]-y[0]) + (x[1]-y[1])*(x[1]-y[1]) + (x[2]-y[2])*(x[2]-y[2]))
}

func oklab(c color) color {
	l := math.Cbrt(0.4122214708*c[0] + 0.5363325363*c[1] + 0.0514459929*c[2])
	m := math.Cbrt(0.2119034982*c[0] + 0.6806995451*c[1] + 0.1073969566*c[2])
	s := math.Cbrt(0.0883024619*c[0] + 0.2817188376*c[1] + 0.6299787005*c[2])
	return color{
		0.2104542553*l + 0.7936177850*m - 0.0040720468*s, 1.9779984951*l - 2.4285922050*m + 0.4505937099*s,
		0.0259040371*l + 0.7827717662*m - 0.8086757660*s,
	}
}
