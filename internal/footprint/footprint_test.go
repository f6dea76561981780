package footprint

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func fileResident(t *testing.T) (kb int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if n, _ := fmt.Sscanf(line, "RssFile: %d", &kb); n == 1 {
			return kb
		}
	}
	t.Fatal("no RssFile")
	return 0
}

func TestTrim(t *testing.T) {
	before := fileResident(t)
	freed, err := Trim()
	if err != nil {
		t.Fatal(err)
	}
	after := fileResident(t)
	if freed == 0 || after >= before {
		t.Errorf("%d bytes trimmed, %d kB of files resident before, %d after", freed, before, after)
	}
	if strings.Repeat("x", 3) != "xxx" { // the program still runs from the same pages
		t.Error("the program has changed")
	}
}
