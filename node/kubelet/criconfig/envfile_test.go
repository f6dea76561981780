package criconfig

import (
	"bytes"
	"strings"
	"testing"
)

func TestParseEnvFile(t *testing.T) {
	for text, want := range map[string]string{
		"KEY='v'": "v", "  KEY='v' # c\n": "v", "# KEY='c'\n\nA='1'\nKEY='v'": "v", "KEY='a\nb'\n": "a\nb", "KEY=''": "", "KEY= 'v'": "", "A='1'": "",
		"KEY='first'\nKEY='second'": "first", "A='KEY=\nKEY='": "",
	} {
		if got, err := parseEnvFile(strings.NewReader(text), "KEY"); got != want || err != nil {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"KEY", "KEY ='v'", "='v'", "KEY=v", `KEY="v"`, "KEY='v", "KEY='v'x", "KEY='" + strings.Repeat("v", 1<<16) + "'"} {
		if got, err := parseEnvFile(strings.NewReader(text), "KEY"); err == nil {
			t.Errorf("%.20q: %q", text, got)
		}
	}
}

// A value found in a file of variables stands there in quotes, after its name.
func FuzzEnvFile(f *testing.F) {
	f.Add("KEY", []byte("# c\n\n A='1' # one\nKEY='a\nb'\n"))
	f.Add("KEY", []byte("KEY= 'x'\nKEY='y"))
	f.Add("", []byte("='x'\n"))
	f.Fuzz(func(t *testing.T, key string, data []byte) {
		v, err := parseEnvFile(bytes.NewReader(data), key)
		if err != nil || v == "" {
			return
		}
		if text := strings.ReplaceAll(string(data), "\r\n", "\n"); !strings.Contains(text, key+"='"+v+"'") {
			t.Fatalf("%q holds no %q for %q", data, v, key)
		}
	})
}
