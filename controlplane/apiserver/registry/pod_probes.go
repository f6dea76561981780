package registry

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *podCheck) checkProbes(ctr *corev1.Container, at *field.Path) {
	if p := ctr.LivenessProbe; p != nil {
		c.checkProbe(p, at.Child("livenessProbe"))
		c.onceIsSuccess(p, at.Child("livenessProbe"))
	}
	if p := ctr.ReadinessProbe; p != nil {
		c.checkProbe(p, at.Child("readinessProbe"))
		if p.TerminationGracePeriodSeconds != nil {
			c.invalid(at.Child("readinessProbe", "terminationGracePeriodSeconds"), p.TerminationGracePeriodSeconds, "must not be set for readinessProbes")
		}
	}
	if p := ctr.StartupProbe; p != nil {
		c.checkProbe(p, at.Child("startupProbe"))
		c.onceIsSuccess(p, at.Child("startupProbe"))
	}
}

func (c *podCheck) onceIsSuccess(p *corev1.Probe, at *field.Path) {
	if p.SuccessThreshold != 1 {
		c.invalid(at.Child("successThreshold"), p.SuccessThreshold, "must be 1")
	}
}

func (c *podCheck) checkProbe(p *corev1.Probe, at *field.Path) {
	c.checkHandler(p.Exec, p.HTTPGet, p.TCPSocket, p.GRPC, nil, at)
	c.add(nonnegative(p.InitialDelaySeconds, at.Child("initialDelaySeconds")))
	c.add(nonnegative(p.TimeoutSeconds, at.Child("timeoutSeconds")))
	c.add(nonnegative(p.PeriodSeconds, at.Child("periodSeconds")))
	c.add(nonnegative(p.SuccessThreshold, at.Child("successThreshold")))
	c.add(nonnegative(p.FailureThreshold, at.Child("failureThreshold")))
	if g := p.TerminationGracePeriodSeconds; g != nil && *g <= 0 {
		c.invalid(at.Child("terminationGracePeriodSeconds"), *g, "must be greater than 0")
	}
}

func (c *podCheck) checkLifecycle(l *corev1.Lifecycle, at *field.Path) {
	if l == nil {
		return
	}
	at = at.Child("lifecycle")
	if h := l.PostStart; h != nil {
		c.checkHandler(h.Exec, h.HTTPGet, h.TCPSocket, nil, h.Sleep, at.Child("postStart"))
	}
	if h := l.PreStop; h != nil {
		c.checkHandler(h.Exec, h.HTTPGet, h.TCPSocket, nil, h.Sleep, at.Child("preStop"))
	}
	if l.StopSignal != nil {
		c.checkStopSignal(*l.StopSignal, at.Child("stopSignal"))
	}
}

// checkHandler checks what a probe or hook does: exactly one thing.
func (c *podCheck) checkHandler(exec *corev1.ExecAction, http *corev1.HTTPGetAction, tcp *corev1.TCPSocketAction,
	grpc *corev1.GRPCAction, sleep *corev1.SleepAction, at *field.Path) {
	n := 0
	one := func(set bool, name string, check func(at *field.Path)) {
		switch {
		case !set:
		case n > 0:
			c.forbidden(at.Child(name), "may not specify more than 1 handler type")
		default:
			n++
			check(at.Child(name))
		}
	}
	one(exec != nil, "exec", func(at *field.Path) {
		if len(exec.Command) == 0 {
			c.required(at.Child("command"), "")
		}
	})
	one(http != nil, "httpGet", func(at *field.Path) {
		if http.Path == "" {
			c.required(at.Child("path"), "")
		}
		c.add(portNumberOrName(http.Port, at.Child("port")))
		c.add(oneOf(http.Scheme, at.Child("scheme"), corev1.URISchemeHTTP, corev1.URISchemeHTTPS))
		for _, h := range http.HTTPHeaders {
			c.add(invalid(utilvalidation.IsHTTPHeaderName(h.Name), h.Name, at.Child("httpHeaders")))
		}
	})
	one(tcp != nil, "tcpSocket", func(at *field.Path) { c.add(portNumberOrName(tcp.Port, at.Child("port"))) })
	one(grpc != nil, "grpc", func(at *field.Path) {
		c.add(portNumberOrName(intstr.FromInt32(grpc.Port), at.Child("port")))
	})
	one(sleep != nil, "sleep", func(at *field.Path) {
		if g := c.spec.TerminationGracePeriodSeconds; g != nil && (sleep.Seconds < 0 || sleep.Seconds > *g) {
			c.invalid(at, sleep.Seconds, fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", *g))
		}
	})
	if n == 0 {
		c.required(at, "must specify a handler type")
	}
}
