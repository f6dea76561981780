package pullrecords

import (
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
)

// A Policy says whether a pod has to show that it may have an image that is on the node,
// by the image's name in the pod and by whether the kubelet pulled it.
type Policy func(image string, pulled bool) (verify bool)

// Policies are KubeletConfiguration's imagePullCredentialsVerificationPolicy. allowed are
// the patterns of its preloadedImagesVerificationAllowlist, which only one of them asks.
var Policies = map[string]func(allowed []string) Policy{
	"NeverVerify":                func([]string) Policy { return func(string, bool) bool { return false } },
	"NeverVerifyPreloadedImages": func([]string) Policy { return neverPreloaded },
	"NeverVerifyAllowlistedImages": func(allowed []string) Policy {
		return func(image string, _ bool) bool {
			name, err := untagged(image)
			if err != nil {
				name = image
			}
			return !slices.ContainsFunc(allowed, func(pattern string) bool {
				if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
					return strings.HasPrefix(name, prefix)
				}
				return name == pattern
			})
		}
	},
	"AlwaysVerify": func([]string) Policy { return func(string, bool) bool { return true } },
}

// neverPreloaded is the default.
func neverPreloaded(_ string, pulled bool) bool { return pulled }

// CheckPattern says what is wrong with a pattern of the list of images that are not
// verified: a name without tag and digest, or all below one, as in registry.example/team/*.
func CheckPattern(pattern string) error {
	if pattern != strings.TrimSpace(pattern) {
		return fmt.Errorf("leading/trailing spaces are not allowed: %s", pattern)
	}
	below, wild := strings.CutSuffix(pattern, "/*")
	switch {
	case pattern == "":
		return fmt.Errorf("the supplied pattern is too short: %s", pattern)
	case strings.Contains(below, "*"):
		return fmt.Errorf("not a valid wildcard pattern, only patterns ending with '/*' are allowed: %s", pattern)
	case wild && below == "":
		return fmt.Errorf("at least registry hostname is required")
	case wild:
		return nil
	}
	name, err := untagged(pattern)
	if err != nil {
		return fmt.Errorf("failed to parse as an image name: %w", err)
	}
	if name != pattern {
		return fmt.Errorf("neither tag nor digest is accepted in an image reference: %s", pattern)
	}
	return nil
}

// untagged is an image's name as it is written, without tag and digest.
func untagged(image string) (string, error) {
	ref, err := reference.Parse(image)
	if err != nil {
		return "", err
	}
	if d, ok := ref.(reference.Digested); ok {
		image = strings.TrimSuffix(image, "@"+d.Digest().String())
	}
	if t, ok := ref.(reference.Tagged); ok {
		image = strings.TrimSuffix(image, ":"+t.Tag())
	}
	return image, nil
}
