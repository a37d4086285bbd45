! SPDX-License-Identifier: Apache-2.0 OR MIT
!
! fortran_phases.f90: the program that track_wrappers.c hosts: phases by name, in Fortran.
program fortran_phases
    use tiercel, only: tiercel_phase
    implicit none
    real, allocatable :: x(:)
    character(len=20) :: padded = 'solve'
    call tiercel_phase('assemble')
    allocate(x(100000))
    x = 1.5
    call tiercel_phase(padded)
    if (sum(x) < 1.0) stop 1
    call tiercel_phase('assemble')
end program fortran_phases
