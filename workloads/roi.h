/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * roi.h: marks around the region of interest, for tools that observe instructions.
 * In: nothing. Out: two instructions that do nothing (`nopl imm32(%rax)`, bytes 0F 1F 80 imm32),
 * distinguished by their constant. Nothing on other architectures.
 * Knows nothing of the tools.
 */
#ifndef ROI_H
#define ROI_H

/* "TIE" and "TIF" behind a byte that no compiler's padding has. */
#define ROI_BEGIN_MARK "0x54494501"
#define ROI_END_MARK "0x54494502"

#if defined(__x86_64__)
#define ROI_MARK(mark) __asm__ volatile("nopl " mark "(%%rax)" ::: "memory")
#else
#define ROI_MARK(mark) __asm__ volatile("" ::: "memory")
#endif

#define ROI_BEGIN() ROI_MARK(ROI_BEGIN_MARK)
#define ROI_END() ROI_MARK(ROI_END_MARK)

#endif
