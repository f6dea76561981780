package componentflags

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"knarr/internal/version"
)

// Compatibility is the flags of which version a program is like.
type Compatibility struct{ emulated, least []string }

// Bind declares the flags.
func (c *Compatibility) Bind(f *pflag.FlagSet) {
	f.StringSliceVar(&c.emulated, "emulated-version", nil, "`version` to behave like: the only one is "+minor())
	f.StringSliceVar(&c.least, "min-compatibility-version", nil, "oldest `version` to work with")
}

// minor is the version without its last number and its v.
func minor() string {
	v := strings.TrimPrefix(version.Kubernetes, "v")
	return v[:strings.LastIndex(v, ".")]
}

// Validate says that only this version can be asked for. What is no version is an error
// in both flags.
func (c *Compatibility) Validate() error {
	for flag, all := range map[string][]string{"emulated-version": c.emulated, "min-compatibility-version": c.least} {
		for _, v := range all {
			component, of, found := strings.Cut(v, "=")
			if !found {
				component, of = "kube", v
			}
			var major, number int
			if _, err := fmt.Sscanf(strings.TrimPrefix(of, "v"), "%d.%d", &major, &number); err != nil {
				return fmt.Errorf("--%s: %q is not a version such as %s", flag, v, minor())
			}
			if component != "kube" {
				return fmt.Errorf("--%s: component not registered: %s", flag, component)
			}
			if flag == "emulated-version" && fmt.Sprintf("%d.%d", major, number) != minor() {
				return fmt.Errorf("--%s: %s: this program is like %s and no other; leave it out", flag, v, minor())
			}
		}
	}
	return nil
}
