package arch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNFTables: connections to the kernel's packet rules are made by internal/nft, since
// one to a kernel without them waits for ever.
func TestNFTables(t *testing.T) {
	for _, p := range tree(t) {
		if within(p.name(), "internal/nft") {
			continue
		}
		for _, f := range p.files() {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(f, "_test.go") && strings.Contains(string(b), "nftables.New(") {
				t.Errorf("%s/%s opens a connection with nftables.New; nft.Open answers where the kernel has no nf_tables", p.name(), filepath.Base(f))
			}
		}
	}
}
