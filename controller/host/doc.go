// Package host turns what the controller asks for into calls of the engine and of the kernel: it implements
// [controller.Engine] and [controller.Host] by packages engine, gate, guard and cut.
package host
