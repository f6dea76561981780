package registry

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *podCheck) checkContainers(at *field.Path) {
	cs := c.spec.Containers
	if len(cs) == 0 {
		c.required(at, "")
		return
	}
	names := map[string]bool{}
	for i := range cs {
		ctr, p := &cs[i], at.Index(i)
		c.checkContainer(ctr, p)
		if names[ctr.Name] {
			c.duplicate(p.Child("name"), ctr.Name)
		}
		names[ctr.Name] = true
		c.checkLifecycle(ctr.Lifecycle, p)
		c.checkProbes(ctr, p)
		c.checkRestartRules(ctr.RestartPolicy, ctr.RestartPolicyRules, p)
	}
	c.checkHostPortConflicts(cs, at)
}

func (c *podCheck) checkInitContainers(at *field.Path) {
	names := map[string]bool{}
	for i := range c.spec.Containers {
		names[c.spec.Containers[i].Name] = true
	}
	for i := range c.spec.InitContainers {
		ctr, p := &c.spec.InitContainers[i], at.Index(i)
		c.checkContainer(ctr, p)
		switch {
		case ctr.RestartPolicy == nil && len(ctr.RestartPolicyRules) > 0:
			c.required(p.Child("restartPolicy"), "must specify restartPolicy when restart rules are used")
		case ctr.RestartPolicy != nil:
			c.checkRestartRules(ctr.RestartPolicy, ctr.RestartPolicyRules, p)
		}
		if names[ctr.Name] {
			c.duplicate(p.Child("name"), ctr.Name)
		} else if ctr.Name != "" {
			names[ctr.Name] = true
		}
		c.checkHostPortConflicts(c.spec.InitContainers[i:i+1], at)
		if isSidecar(ctr) {
			c.checkLifecycle(ctr.Lifecycle, p)
			c.checkProbes(ctr, p)
			continue
		}
		for _, part := range []struct {
			name string
			set  bool
		}{
			{"lifecycle", ctr.Lifecycle != nil},
			{"livenessProbe", ctr.LivenessProbe != nil},
			{"readinessProbe", ctr.ReadinessProbe != nil},
			{"startupProbe", ctr.StartupProbe != nil},
		} {
			if part.set {
				c.forbidden(p.Child(part.name), "may not be set for init containers without restartPolicy=Always")
			}
		}
		for j, r := range ctr.ResizePolicy {
			if r.RestartPolicy == corev1.RestartContainer {
				c.invalid(p.Child("resizePolicy").Index(j).Child("restartPolicy"), r.RestartPolicy,
					"must not be set to 'RestartContainer' for non-sidecar initContainers")
			}
		}
	}
}

func (c *podCheck) checkEphemeralContainers(at *field.Path) {
	if len(c.spec.EphemeralContainers) == 0 {
		return
	}
	others, names := map[string]bool{}, map[string]bool{}
	for _, cs := range [][]corev1.Container{c.spec.Containers, c.spec.InitContainers} {
		for i := range cs {
			others[cs[i].Name], names[cs[i].Name] = true, true
		}
	}
	for i := range c.spec.EphemeralContainers {
		e, p := &c.spec.EphemeralContainers[i], at.Index(i)
		ctr := (*corev1.Container)(&e.EphemeralContainerCommon)
		c.checkContainer(ctr, p)
		c.add(trimmedImage(ctr, p))
		if names[e.Name] {
			c.duplicate(p.Child("name"), e.Name)
		}
		names[e.Name] = true
		if e.TargetContainerName != "" && !others[e.TargetContainerName] {
			c.notFound(p.Child("targetContainerName"), e.TargetContainerName)
		}
		const not = "cannot be set for an Ephemeral Container"
		for _, part := range []struct {
			name string
			set  bool
		}{
			{"ports", e.Ports != nil},
			{"resources", e.Resources.Limits != nil || e.Resources.Requests != nil || e.Resources.Claims != nil},
			{"resizePolicy", e.ResizePolicy != nil},
			{"restartPolicy", e.RestartPolicy != nil},
			{"restartPolicyRules", e.RestartPolicyRules != nil},
			{"livenessProbe", e.LivenessProbe != nil},
			{"readinessProbe", e.ReadinessProbe != nil},
			{"startupProbe", e.StartupProbe != nil},
			{"lifecycle", e.Lifecycle != nil},
		} {
			if part.set {
				c.forbidden(p.Child(part.name), not)
			}
		}
		for j, m := range e.VolumeMounts {
			if m.SubPath != "" {
				c.forbidden(p.Child("volumeMounts").Index(j).Child("subPath"), not)
			}
			if m.SubPathExpr != "" {
				c.forbidden(p.Child("volumeMounts").Index(j).Child("subPathExpr"), not)
			}
		}
	}
}

// checkContainer checks what all containers have in common.
func (c *podCheck) checkContainer(ctr *corev1.Container, at *field.Path) {
	c.label(ctr.Name, at, "name")
	c.need(ctr.Image, at, "image")
	choice(&c.faults, ctr.TerminationMessagePolicy, at, "terminationMessagePolicy",
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	c.checkPorts(ctr.Ports, at)
	if len(ctr.Env) > 0 {
		c.checkEnv(ctr.Env, at.Child("env"))
	}
	if len(ctr.EnvFrom) > 0 {
		c.checkEnvFrom(ctr.EnvFrom, at.Child("envFrom"))
	}
	c.checkMounts(ctr, at)
	c.checkDevices(ctr, at)
	c.checkPullPolicy(ctr.ImagePullPolicy, at, "imagePullPolicy")
	c.add(validateResources(&ctr.Resources, containerResourceName, c.claims, at.Child("resources")))
	c.checkResizePolicy(ctr.ResizePolicy, at)
	if ctr.SecurityContext != nil {
		c.checkSecurity(ctr.SecurityContext, at.Child("securityContext"))
	}
}

func (c *podCheck) checkPullPolicy(p corev1.PullPolicy, at *field.Path, name string) {
	choice(&c.faults, p, at, name, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
}

func (c *podCheck) checkPorts(ports []corev1.ContainerPort, at *field.Path) {
	if len(ports) == 0 {
		return
	}
	at = at.Child("ports")
	names := map[string]bool{}
	for i, port := range ports {
		p := at.Index(i)
		if port.Name != "" {
			if msgs := utilvalidation.IsValidPortName(port.Name); len(msgs) > 0 {
				c.add(invalid(msgs, port.Name, p.Child("name")))
			} else if names[port.Name] {
				c.duplicate(p.Child("name"), port.Name)
			}
			names[port.Name] = true
		}
		switch {
		case port.ContainerPort == 0:
			c.required(p.Child("containerPort"), "")
		case !isPort(port.ContainerPort):
			c.add(portNumber(port.ContainerPort, p.Child("containerPort")))
		}
		if port.HostPort != 0 && !isPort(port.HostPort) {
			c.add(portNumber(port.HostPort, p.Child("hostPort")))
		}
		protocol(&c.faults, port.Protocol, p)
	}
}

func isPort(n int32) bool { return n > 0 && n < 1<<16 }

// protocol checks the protocol of the port at.
func protocol(f *faults, p corev1.Protocol, at *field.Path) {
	choice(f, p, at, "protocol", corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)
}

func (c *podCheck) checkHostPortConflicts(cs []corev1.Container, at *field.Path) {
	var used map[string]bool
	for i := range cs {
		for j, port := range cs[i].Ports {
			if port.HostPort == 0 {
				continue
			}
			if used == nil {
				used = map[string]bool{}
			}
			key := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
			if used[key] {
				c.duplicate(at.Index(i).Child("ports").Index(j).Child("hostPort"), key)
			}
			used[key] = true
		}
	}
}

func (c *podCheck) checkResizePolicy(list []corev1.ContainerResizePolicy, at *field.Path) {
	if len(list) == 0 {
		return
	}
	at = at.Child("resizePolicy")
	seen := map[corev1.ResourceName]bool{}
	for i, p := range list {
		if seen[p.ResourceName] {
			c.duplicate(at.Index(i), p.ResourceName)
		}
		seen[p.ResourceName] = true
		c.add(oneOfNeeded(p.ResourceName, at, corev1.ResourceCPU, corev1.ResourceMemory))
		c.add(oneOfNeeded(p.RestartPolicy, at, corev1.NotRequired, corev1.RestartContainer))
		if c.spec.RestartPolicy == corev1.RestartPolicyNever && p.RestartPolicy != corev1.NotRequired {
			c.invalid(at, p.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")
		}
	}
}

func (c *podCheck) checkRestartRules(policy *corev1.ContainerRestartPolicy, rules []corev1.ContainerRestartRule, at *field.Path) {
	if policy == nil && len(rules) == 0 {
		return
	}
	p := at.Child("restartPolicy")
	switch {
	case policy == nil:
		c.required(p, "must specify restartPolicy when restart rules are used")
	default:
		c.add(oneOf(*policy, p, corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure))
	}
	if len(rules) > 20 {
		c.list = append(c.list, field.TooMany(at.Child("restartPolicyRules"), len(rules), 20))
	}
	for i, r := range rules {
		p := at.Child("restartPolicyRules").Index(i)
		c.add(oneOf(r.Action, p.Child("action"),
			corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers))
		if r.ExitCodes == nil {
			c.required(p.Child("exitCodes"), "must be specified")
			continue
		}
		c.add(oneOf(r.ExitCodes.Operator, p.Child("exitCodes", "operator"),
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn))
		if n := len(r.ExitCodes.Values); n > 255 {
			c.list = append(c.list, field.TooMany(p.Child("exitCodes", "values"), n, 255))
		}
	}
}
