package configuration

import (
	"fmt"
	"regexp"

	"k8s.io/component-helpers/node/util/sysctl"
)

// sysctlPattern is a name of a sysctl, with dots or slashes, that may end with a star.
const (
	sysctlSegment = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
	sysctlPattern = "(" + sysctlSegment + "[\\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]"
	maxSysctl     = 253
)

var sysctlPatterns = regexp.MustCompile("^" + sysctlPattern + "$")

// sysctlFault says what is wrong with a pattern of sysctls that pods may set; "" if nothing.
func sysctlFault(pattern string) string {
	if len(pattern) > maxSysctl || !sysctlPatterns.MatchString(pattern) {
		return fmt.Sprintf("sysctl %q must have at most %d characters and match regex %s", pattern, maxSysctl, sysctlPattern)
	}
	if namespace, name, _ := sysctl.GetNamespace(pattern); namespace == sysctl.UnknownNamespace {
		return fmt.Sprintf("the sysctls %q are not known to be namespaced", name)
	}
	return ""
}
