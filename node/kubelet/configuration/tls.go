package configuration

import (
	"crypto/tls"
	"fmt"
	"maps"
	"slices"

	"knarr/internal/nearest"
)

// TLSVersion is the least version of TLS by its name; 1.2 without one.
func TLSVersion(name string) (uint16, error) {
	versions := map[string]uint16{
		"": tls.VersionTLS12, "VersionTLS10": tls.VersionTLS10, "VersionTLS11": tls.VersionTLS11,
		"VersionTLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13,
	}
	v, ok := versions[name]
	if !ok {
		return 0, fmt.Errorf("unknown tls version %q, must be one of: %q", name, slices.Sorted(maps.Keys(versions))[1:])
	}
	return v, nil
}

// CipherSuites are suites by their names, nil for none.
func CipherSuites(names []string) ([]uint16, error) {
	ids := map[string]uint16{}
	for _, s := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		ids[s.Name] = s.ID
	}
	var out []uint16
	for _, name := range names {
		id, ok := ids[name]
		if !ok {
			return nil, fmt.Errorf("Cipher suite %s not supported or doesn't exist%s", name, nearest.Hint(name, slices.Sorted(maps.Keys(ids)))) //nolint:staticcheck // upstream's words
		}
		out = append(out, id)
	}
	return out, nil
}
