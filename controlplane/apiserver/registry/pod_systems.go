package registry

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// checkWindows refuses what Windows does not have.
func (c *podCheck) checkWindows() {
	not := func(set bool, at *field.Path) {
		if set {
			c.forbidden(at, "cannot be set for a windows pod")
		}
	}
	s := c.spec
	if sc := s.SecurityContext; sc != nil {
		p := c.at.Child("securityContext")
		not(sc.AppArmorProfile != nil, p.Child("appArmorProfile"))
		not(sc.SELinuxOptions != nil, p.Child("seLinuxOptions"))
		not(s.HostUsers != nil, c.at.Child("hostUsers"))
		not(s.HostPID, c.at.Child("hostPID"))
		not(s.HostIPC, c.at.Child("hostIPC"))
		not(sc.SeccompProfile != nil, p.Child("seccompProfile"))
		not(sc.FSGroup != nil, p.Child("fsGroup"))
		not(sc.FSGroupChangePolicy != nil, p.Child("fsGroupChangePolicy"))
		not(len(sc.Sysctls) > 0, p.Child("sysctls"))
		not(s.ShareProcessNamespace != nil, c.at.Child("shareProcessNamespace"))
		not(sc.RunAsUser != nil, p.Child("runAsUser"))
		not(sc.RunAsGroup != nil, p.Child("runAsGroup"))
		not(sc.SupplementalGroups != nil, p.Child("supplementalGroups"))
		not(sc.SupplementalGroupsPolicy != nil, p.Child("supplementalGroupsPolicy"))
		not(sc.SELinuxChangePolicy != nil, p.Child("seLinuxChangePolicy"))
	}
	c.eachContainer(func(ctr *corev1.Container, at place) {
		sc := ctr.SecurityContext
		if sc == nil {
			return
		}
		p := at.path().Child("securityContext")
		not(sc.AppArmorProfile != nil, p.Child("appArmorProfile"))
		not(sc.SELinuxOptions != nil, p.Child("seLinuxOptions"))
		not(sc.SeccompProfile != nil, p.Child("seccompProfile"))
		not(sc.Capabilities != nil, p.Child("capabilities"))
		not(sc.ReadOnlyRootFilesystem != nil, p.Child("readOnlyRootFilesystem"))
		not(sc.Privileged != nil, p.Child("privileged"))
		not(sc.AllowPrivilegeEscalation != nil, p.Child("allowPrivilegeEscalation"))
		not(sc.ProcMount != nil, p.Child("procMount"))
		not(sc.RunAsUser != nil, p.Child("runAsUser"))
		not(sc.RunAsGroup != nil, p.Child("runAsGroup"))
	})
}

func (c *podCheck) checkWindowsOptions(o *corev1.WindowsSecurityContextOptions, at *field.Path) {
	if o == nil {
		return
	}
	at = at.Child("windowsOptions")
	if n := o.GMSACredentialSpecName; n != nil {
		c.add(invalid(NameIsDNSSubdomain(*n, false), *n, at.Child("gmsaCredentialSpecName")))
	}
	if s := o.GMSACredentialSpec; s != nil {
		const most = 64 * 1024
		if len(*s) == 0 {
			c.invalid(at.Child("gmsaCredentialSpec"), *s, "gmsaCredentialSpec cannot be an empty string")
		} else if len(*s) > most {
			c.invalid(at.Child("gmsaCredentialSpec"), "<omitted>",
				fmt.Sprintf("gmsaCredentialSpec size must be under %d KiB", most/1024))
		}
	}
	if u := o.RunAsUserName; u != nil {
		for _, msg := range windowsUserFaults(*u) {
			c.invalid(at.Child("runAsUserName"), *u, "runAsUserName"+msg)
		}
	}
}

var (
	controlCharacters = regexp.MustCompile(`[[:cntrl:]]+`)
	netBIOSName       = regexp.MustCompile(`^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`)
	windowsDomain     = regexp.MustCompile(`^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)*$`)
	dotsAndSpaces     = regexp.MustCompile(`^[\. ]+$`)
)

// windowsUserFaults are what is wrong with DOMAIN\USER or USER.
func windowsUserFaults(name string) (msgs []string) {
	domain, user, qualified := strings.Cut(name, `\`)
	switch {
	case name == "":
		return []string{" cannot be an empty string"}
	case controlCharacters.MatchString(name):
		return []string{" cannot contain control characters"}
	case strings.Contains(user, `\`):
		return []string{" cannot contain more than one backslash"}
	case !qualified:
		domain, user = "", name
	}
	const longestDomain, longestUser = 256, 104
	if len(domain) >= longestDomain {
		msgs = append(msgs, fmt.Sprintf("'s Domain length must be under %d characters", longestDomain))
	}
	if qualified && !netBIOSName.MatchString(domain) && !windowsDomain.MatchString(domain) {
		msgs = append(msgs, "'s Domain doesn't match the NetBios nor the DNS format")
	}
	if user == "" {
		msgs = append(msgs, "'s User cannot be empty")
	} else if len(user) > longestUser {
		msgs = append(msgs, fmt.Sprintf("'s User length must not be longer than %d characters", longestUser))
	}
	if dotsAndSpaces.MatchString(user) {
		msgs = append(msgs, "'s User cannot contain only periods or spaces")
	}
	if strings.ContainsAny(user, `"/\:;|=,+*?<>@[]`) {
		msgs = append(msgs, `'s User cannot contain the following characters: "/\:;|=,+*?<>@[]`)
	}
	return msgs
}

// checkStopSignal: a signal means something only with a known system.
func (c *podCheck) checkStopSignal(s corev1.Signal, at *field.Path) {
	switch {
	case c.spec.OS == nil:
		c.forbidden(at, "may not be set for containers with empty `spec.os.name`")
	case c.spec.OS.Name == corev1.Windows:
		c.add(oneOf(s, at, corev1.SIGKILL, corev1.SIGTERM))
	case c.spec.OS.Name == corev1.Linux:
		c.add(oneOf(s, at, linuxSignals()...))
	}
}

func linuxSignals() []corev1.Signal {
	names := []corev1.Signal{"SIGABRT", "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCLD", "SIGCONT", "SIGFPE", "SIGHUP", "SIGILL",
		"SIGINT", "SIGIO", "SIGIOT", "SIGKILL", "SIGPIPE", "SIGPOLL", "SIGPROF", "SIGPWR", "SIGQUIT", "SIGSEGV",
		"SIGSTKFLT", "SIGSTOP", "SIGSYS", "SIGTERM", "SIGTRAP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGUSR1",
		"SIGUSR2", "SIGVTALRM", "SIGWINCH", "SIGXCPU", "SIGXFSZ", "SIGRTMIN", "SIGRTMAX"}
	for i := 1; i <= 15; i++ {
		names = append(names, corev1.Signal(fmt.Sprintf("SIGRTMIN+%d", i)))
	}
	for i := 1; i <= 14; i++ {
		names = append(names, corev1.Signal(fmt.Sprintf("SIGRTMAX-%d", i)))
	}
	return names
}
